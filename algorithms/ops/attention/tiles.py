"""Attention of every head and sequence, forward and backward, by two hand-derived rules for one *tile*.

A tile is one head of one sequence. On a CPU, large tiles run one after another, since XLA's CPU backend does not use
its fast matrix product for a batch of them. Small tiles, and all tiles on other platforms, run side by side. Every rule
reads the same record, `Scores`, and computes it by blocks, whose shapes alone differ between the rules: all scores at
once (the rule at the end of this file), square blocks, or strips.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.lax import dynamic_slice_in_dim
from jaxtyping import Bool, Float, UInt32

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, in_rows
from algorithms.machinery.options import hand_derived
from algorithms.masks import Mask, StructuralMask, batch_axes, depends_on_position, divisible_axes, sequence_axes
from algorithms.ops.activation import capped, capped_derivative, softmax
from algorithms.ops.dropout import keep_mask

Queries = Float[Array, "H d_attn B l_x"]
Keys = Float[Array, "H_kv d_attn B l_z"]
Values = Float[Array, "H_kv d_mid B l_z"]
Outputs = Float[Array, "H d_mid B l_x"]
"""Ṽ of every head and sequence."""

ByDistance = tuple[Array, ...]
"""U ``[H, d_r, B, l_x]`` and P ``[H, d_r, n]`` of ``scores_by_distance``, or nothing."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
    """``C = c tanh((KᵀQ + D)/(c √d_attn))``, −∞ where the mask is False, of every head and sequence, or of one tile.

    A sink is one more score for each column, of a value that is 0. In float32 at least. Gradients, and what `axes`
    returns, are records of the same kind.
    """

    mask: Any  # a `Mask`, whose arrays have a leading axis B if the sequences have different masks
    seeds: Any = None  # of the dropout, for each head and sequence, ``[H, B, 2]``; None: nothing is dropped
    by_distance: tuple[Any, ...] = ()  # U and P, which give D
    sinks: Any = None  # ``[H]``, or None
    dropout: float = dataclasses.field(default=0.0, metadata={"static": True})  # of attention weights
    cap: float | None = dataclasses.field(default=None, metadata={"static": True})  # c; None: KᵀQ + D over √d_attn

    def counted_from(self, first: Array, l_z: int) -> "Scores":
        """The scores of queries from position ``first`` of their sequence on."""
        by_distance, mask, seeds = self.by_distance, self.mask, self.seeds
        if by_distance:
            U, P = by_distance
            l_x, n = U.shape[-1], P.shape[-1]
            by_distance = U, dynamic_slice_in_dim(P, n - l_z - l_x - first, l_z + l_x, 2)
        if isinstance(mask, StructuralMask) and depends_on_position(mask):
            mask = dataclasses.replace(mask, first=first if mask.first is None else mask.first + first)
        seeds = None if seeds is None else seeds.at[..., 1].add(first.astype(seeds.dtype))
        return dataclasses.replace(self, mask=mask, seeds=seeds, by_distance=by_distance)

    def axes(self) -> "Scores":
        """The record with the axes of heads, of sequences and of queries in place of each array, None for no axis."""
        axes: Any = {
            "mask": jax.tree.map(lambda a: (None, *a), divisible_axes(self.mask), is_leaf=lambda a: type(a) is tuple),
            "seeds": None if self.seeds is None else (0, 1, None),
            "by_distance": ((0, 2, 3), (0, None, None))[: len(self.by_distance)],
            "sinks": None if self.sinks is None else (0, None, None),
        }
        return dataclasses.replace(self, **axes)

    def block(self, z: "Part", x: "Part", l_x: int, *, turned: bool = False) -> "Block":
        """The scores of a tile's tokens z of the context and x of the l_x queries, ``[x, z]`` if ``turned``."""
        t_z, t_x = z.tokens(), x.tokens()
        if isinstance(self.mask, StructuralMask):
            mask = self.mask.permits(*((t_z[None, :], t_x[:, None]) if turned else (t_z[:, None], t_x[None, :])))
        else:
            mask = x.of(z.of(self.mask, 0), 1)
            mask = mask.T if turned else mask
        keep: Any = 1
        if self.seeds is not None:
            seed, rows, columns = (self.seeds[::-1], t_x, t_z) if turned else (self.seeds, t_z, t_x)
            keep = jnp.where(keep_mask(seed, self.dropout, rows, columns), 1 / (1 - self.dropout), 0)
        U_P = self.by_distance
        if U_P:
            U_P = x.of(U_P[0], 1), Part(self.first_distance(z, x, l_x), z.n + x.n).of(U_P[1], 1)
        return Block(mask, keep, U_P, self.cap, turned)

    @staticmethod
    def first_distance(z: "Part", x: "Part", l_x: int) -> Any:
        """The first column of P that a block needs."""
        return z.first + l_x - x.first - x.n


class Part(NamedTuple):
    """n consecutive tokens."""

    first: Any
    n: int

    def tokens(self) -> Any:
        """Their indices."""
        return self.first + jnp.arange(self.n)

    def of(self, a: Array, axis: int) -> Array:
        """Their part of an array."""
        return a if a.shape[axis] == self.n else dynamic_slice_in_dim(a, self.first, self.n, axis)


class Block(NamedTuple):
    """Some of the scores of a tile, ``[z, x]``; ``[x, z]`` if they are turned."""

    mask: Bool[Array, "rows columns"]
    keep: Any  # D: 0 where an attention weight is dropped, 1/(1 − rate) where it is kept; 1 without dropout
    U_P: tuple[Array, ...]
    cap: float | None
    turned: bool

    def scaled(self, Q: Float[Array, "d_attn x"], K: Float[Array, "d_attn z"]) -> Float[Array, "rows columns"]:
        """``S/√d_attn`` with S = KᵀQ, and the scores by distance. Scaling Q instead would round it, if it is narrow."""
        factors = (transposed(Q), K) if self.turned else (K.T, Q)
        S = jnp.matmul(*factors, preferred_element_type=accumulation_dtype(Q.dtype))
        if self.U_P:
            by_distance = scores_by_distance(*self.U_P, dtype=S.dtype)
            S = S + (by_distance.T if self.turned else by_distance)
        return S * len(Q) ** -0.5

    def masked(self, S: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
        """Scaled scores, capped, and −∞ where the mask is False."""
        return jnp.where(self.mask, capped(S, self.cap), -jnp.inf)

    def backward(
        self,
        S: Any,
        A: Float[Array, "rows columns"],
        g: Float[Array, "rows columns"],
        delta: Float[Array, "#rows #columns"],
    ) -> Float[Array, "rows columns"]:
        """``√d_attn ∂F/∂S = A ⊙ (g − δ)`` for g = D ⊙ VᵀE, in which δ is aᵀg of each column.

        D is 1, or with dropout 0 or 1/(1 − rate), drawn again from the seed. With a cap c, the scores are
        C = c tanh(S/(c √d_attn)), and ∂F/∂S has the factor 1 − C²/c². Scores by distance are part of S; their rule is
        `by_distance_backward`. The mask needs no term, since A is 0 where it is False.
        """
        dS = A * (g - delta)
        return dS if self.cap is None else dS * capped_derivative(S, self.cap)

    def by_distance_backward(self, dS: Float[Array, "rows columns"]) -> tuple[Array, ...]:
        """∂F/∂U and ∂F/∂P, or nothing."""
        return scores_by_distance_backward(*self.U_P, dS=dS.T if self.turned else dS) if self.U_P else ()


def transposed(a: Array) -> Array:
    """aᵀ; row-major for narrow floats, which XLA would otherwise widen."""
    return a.T if a.dtype == accumulation_dtype(a.dtype) else in_rows(a.T)


def gathered_by_distance(U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], l_z: int) -> Float[Array, "l_z l_x"]:
    """``S[t_z, t_x] = P[:, k]ᵀ U[:, t_x]`` with ``k = t_z − t_x + l_x − 1``, added to the scores of contents.

    P ``[d_r, l_z + l_x]`` has a column for each distance, and a spare one at the end; U has one for each query.
    """
    l_x = U.shape[1]
    t_z, t_x = jnp.arange(l_z)[:, None], jnp.arange(l_x)[None]
    return jnp.matmul(P.T, U, preferred_element_type=accumulation_dtype(U.dtype))[t_z - t_x + l_x - 1, t_x]


def scores_by_distance(
    U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], dtype: jnp.dtype
) -> Float[Array, "l_z l_x"]:
    """``S[t_z, t_x] = B[t_x, t_z − t_x + l_x − 1]`` with ``B = UᵀP``: each row of B begins one column earlier.

    The rows are shifted by a reshape: nothing is gathered, and a block of the scores needs only a slice of P.
    """
    l_x, n = U.shape[1], P.shape[1]
    B = jnp.matmul(U.T, P, preferred_element_type=dtype)
    sheared = B.reshape(-1)[l_x - 1 : l_x * n - 1].reshape(l_x, n - 1)
    return sheared[:, : n - l_x].T


def scores_by_distance_backward(
    U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], dS: Float[Array, "l_z l_x"]
) -> tuple[Float[Array, "d_r l_x"], Float[Array, "d_r n"]]:
    """With ``∂F/∂B[t_x, t_z − t_x + l_x − 1] = ∂F/∂S[t_z, t_x]``, and 0 elsewhere::

    ∂F/∂U = P (∂F/∂B)ᵀ
    ∂F/∂P = U ∂F/∂B
    """
    l_x, n = U.shape[1], P.shape[1]
    sheared = jnp.pad(dS.T, ((0, 0), (0, l_x - 1)))
    dB = jnp.pad(sheared.reshape(-1), (l_x - 1, 1)).reshape(l_x, n)
    dU = jnp.matmul(P, dB.T.astype(P.dtype), preferred_element_type=dS.dtype)
    dP = jnp.matmul(U, dB.astype(U.dtype), preferred_element_type=dS.dtype)
    return dU, dP


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
        mask = jax.tree.map(lambda a, n: a[0] if n else a, mask, batch_axes(mask))
        one, with_axes = operator.itemgetter((0, slice(None), 0)), operator.itemgetter((None, slice(None), None))
        found = of_tile(tuple(map(one, matrices)), mask, None if seeds is None else seeds[0, 0])
        return jax.tree.map(with_axes, found)
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

    def place(i):
        return i // (B // of_sequences) * of_heads, i % (B // of_sequences) * of_sequences

    def group(i):
        h, b = place(i)

        def part(array):
            shared = H // len(array)
            sequences, b_0 = (of_sequences, b) if array.shape[2] == B else (1, 0)
            sizes = max(1, of_heads // shared), array.shape[1], sequences, array.shape[3]
            return jax.lax.dynamic_slice(array, (h // shared, 0, b_0, 0), sizes)

        def of_mask(a, n):
            return jax.lax.dynamic_slice_in_dim(a, b, of_sequences) if n else a

        mask_b = jax.tree.map(of_mask, mask, batch_axes(mask))
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
    Q: Queries
    K: Keys
    V: Values
    V_tilde: Outputs | None  # None if the rules keep A, and there are no sinks
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
            # sinks are added below
            of_scores: Any = {"mask": mask, "seeds": seed, "by_distance": tuple(matrices[n:]), "sinks": None}
            return of_tile(*matrices[:n], dataclasses.replace(scores, **of_scores))

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


def _forward_of_tile(Q, K, V, scores):
    block = scores.block(Part(0, K.shape[1]), Part(0, Q.shape[1]), Q.shape[1])
    S = block.masked(block.scaled(Q, K))
    A = softmax(S)
    V_tilde = jnp.matmul(V, (A * block.keep).astype(V.dtype), preferred_element_type=A.dtype)
    empty = ~jnp.any(-jnp.inf < S, axis=0, keepdims=True)
    log_sum_exp = jnp.where(empty, jnp.inf, jax.nn.logsumexp(jnp.where(empty, 0, S), axis=0, keepdims=True))
    return V_tilde.astype(V.dtype), log_sum_exp, A.astype(V.dtype)


def _backward_of_tile(Q, K, V, A, E, scores):
    """With E = ∂F/∂Ṽ, A = softmax(S/√d_attn) and ⊗ the softmax Jacobian diag(a) − a aᵀ of every column::

        ∂F/∂V = E Aᵀ
        ∂F/∂A = Vᵀ E
        ∂F/∂S = A ⊗ (Vᵀ E) /√d_attn,   column by column  a ⊙ g − (aᵀ g) a
        ∂F/∂Q = K ∂F/∂S
        ∂F/∂K = Q (∂F/∂S)ᵀ

    Dropout, a cap, scores by distance and the mask are in `Block.backward`.

    Source: incml 2023, whose Q and K are the K and Q of the paper; Radu 2026, §12.4.6.
    """
    dtype, block = accumulation_dtype(Q.dtype), scores.block(Part(0, K.shape[1]), Part(0, Q.shape[1]), Q.shape[1])
    A, D = A.astype(dtype), block.keep
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    dV = product(E, (A * D).T.astype(E.dtype))
    g = product(V.T, E) * D
    S = None if scores.cap is None else block.scaled(Q, K)
    dS = block.backward(S, A, g, (A * g).sum(axis=0, keepdims=True)) * Q.shape[0] ** -0.5
    dQ = product(K, dS.astype(K.dtype))
    dK = product(Q, dS.T.astype(Q.dtype))
    gradients = dQ, dK, dV, *block.by_distance_backward(dS)
    return tuple(d.astype(a.dtype) for d, a in zip(gradients, (Q, K, V, *scores.by_distance), strict=True))


dense_attention = kernel(for_each_tile, _forward_of_tile, _backward_of_tile, keeps_softmax=True)
