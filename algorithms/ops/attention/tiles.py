"""Attention of every head and sequence, forward and backward, by two hand-derived rules for one *tile*.

A tile is one head of one sequence. On a CPU, large tiles run one after another, since XLA's CPU backend does not use
its fast matrix product for a batch of them. Small tiles, and all tiles on other platforms, run side by side.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, UInt32

from algorithms.machinery.arrays import are_numbers
from algorithms.machinery.hand_derived import hand_derived
from algorithms.masks import Mask, sequence_axes
from algorithms.ops.attention.scores import Scores

T = TypeVar("T")
Tiles = tuple[Float[Array, "_ _ #B _"], ...]
SMALL = 128 * 128
"""The number of scores up to which a tile is small."""

AT_ONCE = 2
"""How many large tiles run at once on a CPU: the operations of a single tile wait for each other."""


def for_each_tile(
    of_tile: Callable[..., Any], matrices: Tiles, mask: Mask, seeds: UInt32[Array, "H B 2"] | None
) -> Tiles:
    """``of_tile`` of every head and sequence.

    Args:
        of_tile: accepts matrices ``[rows, columns]``, a mask and the seed of the dropout or None; returns matrices.
        matrices: ``[H, rows, B, columns]``. A matrix with fewer heads than the first shares each among several heads;
            one with a single sequence shares it among all.
        mask: its arrays have a leading axis B if the sequences have different masks.
        seeds: the seeds of the dropout, or None.
    """
    l_x, l_z = matrices[0].shape[-1], matrices[1].shape[-1]
    if not are_numbers(*matrices[0].shape, l_z) or l_x * l_z <= SMALL:
        return _side_by_side(of_tile, matrices, mask, seeds)
    return jax.lax.platform_dependent(
        matrices,
        mask,
        seeds,
        cpu=lambda *arguments: in_groups(of_tile, *arguments, n=1, at_once=AT_ONCE),
        default=lambda *arguments: _side_by_side(of_tile, *arguments),
    )


def _side_by_side(of_tile, matrices, mask, seeds):
    for_seeds = None if seeds is None else 0
    H, H_kv, B = len(matrices[0]), min(map(len, matrices)), matrices[0].shape[2]
    if H == B == 1:  # not vmap: for batched products, even of one, XLA's CPU backend transposes factors
        axes = sequence_axes(mask)
        mask = jax.tree.map(lambda a, axis: a if axis is None else a[0], mask, axes, is_leaf=lambda a: a is None)
        found = of_tile(tuple(a[0, :, 0] for a in matrices), mask, None if seeds is None else seeds[0, 0])
        return jax.tree.map(lambda a: a[None, :, None], found)
    of_sequences = tuple(1 if a.shape[2] == B else None for a in matrices)
    matrices = tuple(a[:, :, 0] if axis is None else a for a, axis in zip(matrices, of_sequences, strict=True))
    of_head = jax.vmap(of_tile, (of_sequences, sequence_axes(mask), for_seeds), 1)
    if H_kv == H:
        return jax.vmap(of_head, (0, None, for_seeds))(matrices, mask, seeds)
    by_group = tuple(a if len(a) == H_kv else grouped(a, H_kv) for a in matrices)
    own = tuple(None if len(a) == H_kv else 0 for a in matrices)
    of_group = jax.vmap(of_head, (own, None, for_seeds))
    seeds = None if seeds is None else grouped(seeds, H_kv)
    found = jax.vmap(of_group, (0, None, for_seeds))(by_group, mask, seeds)
    return jax.tree.map(lambda a: a.reshape(H, *a.shape[2:]), found)


def grouped(array: Array, H_kv: int) -> Array:
    """An array of heads, in H_kv groups: ``[H_kv, H/H_kv, …]``."""
    return array.reshape(H_kv, -1, *array.shape[1:])


def in_groups(
    of_tile: Callable[..., Any],
    matrices: Tiles,
    mask: Mask,
    seeds: UInt32[Array, "H B 2"] | None,
    n: int,
    at_once: int = 1,
) -> Tiles:
    """`for_each_tile`, in groups of at most n tiles side by side; of all groups, ``at_once`` may run concurrently."""
    H, _, B, _ = matrices[0].shape
    of_heads, of_sequences = _group(H, min(map(len, matrices)), B, n)
    axes = sequence_axes(mask)

    def place(i):
        return i // (B // of_sequences) * of_heads, i % (B // of_sequences) * of_sequences

    def group(i):
        h, b = place(i)

        def part(array):
            shared = H // len(array)
            sequences, b_0 = (of_sequences, b) if array.shape[2] == B else (1, 0)
            sizes = max(1, of_heads // shared), array.shape[1], sequences, array.shape[3]
            return jax.lax.dynamic_slice(array, (h // shared, 0, b_0, 0), sizes)

        def of_mask(a, axis):
            return a if axis is None else jax.lax.dynamic_slice_in_dim(a, b, of_sequences)

        mask_b = jax.tree.map(of_mask, mask, axes, is_leaf=lambda a: a is None)
        drawn = None if seeds is None else jax.lax.dynamic_slice(seeds, (h, b, 0), (of_heads, of_sequences, 2))
        return _side_by_side(of_tile, tuple(map(part, matrices)), mask_b, drawn)

    def put(first, out, count):
        groups = [(place(first + i), group(first + i)) for i in range(count)]
        for (h, b), values in groups:
            out = tuple(
                jax.lax.dynamic_update_slice(a, value, (h, 0, b, 0)) for a, value in zip(out, values, strict=True)
            )
        return out

    shapes = jax.eval_shape(group, 0)
    out = tuple(jnp.zeros_like(matrices[0], dtype=s.dtype, shape=(H, s.shape[1], B, s.shape[3])) for s in shapes)
    count = H * B // (of_heads * of_sequences)
    at_once = min(at_once, count)
    whole = count // at_once
    out = jax.lax.fori_loop(0, whole, lambda i, out: put(i * at_once, out, at_once), out)
    return put(whole * at_once, out, count % at_once)


def _group(H: int, H_kv: int, B: int, n: int) -> tuple[int, int]:
    """The numbers of heads and sequences in a group: as many tiles as possible up to n, in groups of equal size.

    The number of heads in a group is a multiple or a divisor of the number that share keys and values.
    """
    heads = [h for h in range(1, H + 1) if H % h == 0 and (h % (H // H_kv) == 0 or (H // H_kv) % h == 0)]
    groups = [(h, b) for h in heads for b in range(1, B + 1) if B % b == 0 and h * b <= n]
    return max(groups, key=lambda group: (group[0] * group[1], group[0]))


def in_turn(n: int, step: Callable[[Array, T], T], state: T) -> T:
    """``state`` after ``step(i, state)`` for i = 0, …, n − 1.

    The barrier keeps values that depend only on i, such as the masks of the blocks, inside the loop. Without it JAX
    would compute all of them before the loop, and keep them for derivatives.
    """

    def tied(i, state):
        return step(*jax.lax.optimization_barrier((i, state)))

    return jax.lax.fori_loop(0, n, tied, state)


class _Residuals(NamedTuple):
    Q: Float[Array, "H d_attn B l_x"]
    K: Float[Array, "H_kv d_attn B l_z"]
    V: Float[Array, "H_kv d_mid B l_z"]
    V_tilde: Float[Array, "H d_mid B l_x"] | None  # None if the rules keep A, and there are no sinks
    A: Float[Array, "H l_z B l_x"] | None
    log_sum_exp: Float[Array, "H 1 B l_x"] | None  # of each column, which gives A again
    scores: Scores


def kernel(
    for_each_tile: Callable[..., Tiles],
    forward_of_tile: Callable[..., Any],
    backward_of_tile: Callable[..., Any],
    *,
    keeps_softmax: bool = False,
) -> Callable[..., Array]:
    """``V · softmax(C)`` of every head and sequence, with the scores C of a record of `Scores`, by these two passes.

    A sink s of each head, if given, is one more score, of a value that is 0. So the rules need not know it: it only
    scales a column of A and of Ṽ by exp(LSE − LSE'), with log-sum-exps LSE' = log(exp LSE + exp s), and the backward
    pass reads the scaled ones. Its own gradient is ``−Σ_t exp(s − LSE'[t]) (Ṽ ⊙ E)[:, t]ᵀ1``.

    Args:
        for_each_tile: applies a rule to every tile.
        forward_of_tile: (Q, K, V, scores) → Ṽ and the log-sum-exp of each column, +∞ if it attends to nothing; perhaps
            A.
        backward_of_tile: (Q, K, V, Ṽ, E, log-sum-exp, scores), or (Q, K, V, A, E, scores) → ∂F/∂Q, ∂F/∂K and ∂F/∂V, for
            E = ∂F/∂Ṽ; and ∂F/∂U and ∂F/∂P, if distances add to the scores.
        keeps_softmax: whether the rules keep A, in O(ℓ²) memory, and not the log-sum-exp, in O(ℓ).

    Source: Phuong and Hutter 2022, lines 4-5 of Algorithm 4.
    """

    def computed(of_tile, matrices, scores):
        def of_each(matrices, mask, seed):
            n = len(matrices) - len(scores.by_distance)
            return of_tile(*matrices[:n], scores.of_tile(mask, seed, matrices[n:]))

        U_P = scores.by_distance  # all sequences share P
        of_distances = (U_P[0], U_P[1][:, :, None]) if U_P else ()
        return for_each_tile(of_each, (*matrices, *of_distances), scores.mask, scores.seeds)

    def forward(Q, K, V, scores):
        sinks = scores.sinks
        V_tilde, log_sum_exp, *A = computed(forward_of_tile, (Q, K, V), scores)
        if sinks is not None:
            before, log_sum_exp = log_sum_exp, jnp.logaddexp(log_sum_exp, _of_columns(sinks, log_sum_exp))
            share = jnp.where(before == log_sum_exp, 1, jnp.exp(before - log_sum_exp))
            V_tilde, *A = ((a * share).astype(a.dtype) for a in (V_tilde, *A))
        V_tilde, log_sum_exp = checkpoint_name(V_tilde, "V_tilde"), checkpoint_name(log_sum_exp, "log_sum_exp")
        A = checkpoint_name(A[0], "A") if keeps_softmax else None
        kept = (None, A, None) if keeps_softmax and sinks is None else (V_tilde, A, log_sum_exp)
        return V_tilde, _Residuals(Q, K, V, *kept, scores)

    def backward(residuals: _Residuals, E):
        Q, K, V, V_tilde, A, log_sum_exp, scores = residuals
        kept = (A, E) if keeps_softmax else (V_tilde, E, log_sum_exp)
        dQ, dK, dV, *dU_dP = computed(backward_of_tile, (Q, K, V, *kept), scores)
        dK, dV = _sum_over_groups(dK, len(K)), _sum_over_groups(dV, len(V))
        by_U_P = (dU_dP[0], dU_dP[1].sum(axis=2)) if dU_dP else ()  # all sequences share P
        d_sinks = None
        if scores.sinks is not None and V_tilde is not None and log_sum_exp is not None:
            A_sink = jnp.exp(_of_columns(scores.sinks, log_sum_exp) - log_sum_exp)
            d_sinks = -(A_sink * V_tilde.astype(A_sink.dtype) * E.astype(A_sink.dtype)).sum((1, 2, 3))
            d_sinks = d_sinks.astype(scores.sinks.dtype)
        by_scores: Any = {"mask": None, "seeds": None, "by_distance": by_U_P, "sinks": d_sinks}
        return dQ, dK, dV, dataclasses.replace(scores, **by_scores)

    return hand_derived(forward, backward)


def _of_columns(sinks: Float[Array, "H"], log_sum_exp: Float[Array, "H _ B l_x"]) -> Float[Array, "H _ _ _"]:
    return sinks.astype(log_sum_exp.dtype)[:, None, None, None]


def _sum_over_groups(dK: Float[Array, "H *axes"], H_kv: int) -> Float[Array, "H_kv *axes"]:
    """The gradient of keys or values that heads share: ``∂F/∂K_g = Σ_{h in group g} ∂F/∂K_h``."""
    return dK if len(dK) == H_kv else grouped(dK, H_kv).sum(axis=1)
