"""Chooses the implementation of lines 4 and 5 of Algorithm 4, for the target platform, and runs it."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from algorithms.machinery.arrays import are_numbers
from algorithms.machinery.naming import beside, for_each, shows
from algorithms.machinery.platform import platform_of
from algorithms.machinery.sharding import split_attention
from algorithms.masks import Mask, StructuralMask, batch_axes, sequence_axes
from algorithms.ops.attention.blockwise import blockwise_attention
from algorithms.ops.attention.dense import dense_attention
from algorithms.ops.attention.distances import gathered_by_distance
from algorithms.ops.attention.scores import ByDistance, Scores
from algorithms.ops.attention.strips import in_strips, strips_attention
from algorithms.ops.attention.vendor import (
    cudnn_attention,
    cudnn_refuses,
    library_attention,
    pallas_attention,
    pallas_refuses,
)
from algorithms.ops.dropout import fold_in, keep_mask, seed_of
from algorithms.ops.softmax import capped, softmax

ATTENTION_RESIDUALS = ("V_tilde", "log_sum_exp", "A")
"""The ``checkpoint_name`` of each array that the rules and the Pallas kernel keep for their backward passes."""

RULES = {"dense": dense_attention, "blockwise": blockwise_attention, "strips": strips_attention}
"""Name of a hand-derived rule → the rule."""

LIBRARY_KERNELS = {"cudnn": (cudnn_attention, cudnn_refuses), "pallas": (pallas_attention, pallas_refuses)}
"""Name of a library's kernel → the kernel, and the function that says why it is not available for these arguments."""


class Weights(NamedTuple):
    """What replaces the softmax of scores: `Attention.weights` of a custom line."""

    of_head: Callable[..., Array]  # (S, own) → A, for one head of one sequence
    own: Any  # what it reads besides the scores: arrays with an axis of heads in front, or None
    says: str  # whose it is, for error messages
    sinks: Any = None  # the sinks ``[H]``, if they are all that differs from the softmax, which the rules can compute
    sequences: Any = None  # for each array of ``own``, its first axis of sequences, or None; None: no array has one


def attend(
    as_printed: Callable[..., Any],
    Q: Float[Array, "... l_x"],
    K: Float[Array, "... l_z"],
    V: Float[Array, "... l_z"],
    mask: Mask,
    *,
    heads: bool,
    implementation: str = "auto",
    dropout: float = 0.0,
    key: Key[Array, "*batch"] | None = None,
    cap: float | None = None,
    by_distance: ByDistance = (),
    weights: Weights | None = None,
) -> Float[Array, "... l_x"]:
    """Lines 4 to the end of Algorithm 4, of every head and every sequence.

    Args:
        as_printed: the lines as printed, for one head of one sequence: `alg03_attention.of_one_head`.
        Q: queries, ``[*heads, d_attn, *batch, l_x]``.
        K: keys, ``[*heads, d_attn, *batch, l_z]``; without batch axes they serve all sequences. With fewer heads
            than Q, each serves several consecutive heads of queries.
        V: values, ``[*heads, d_mid, *batch, l_z]``, shared like the keys.
        mask: one for all heads; one for all sequences, or one for each.
        heads: whether axis 0 is the axis of heads.
        implementation: one of ``IMPLEMENTATIONS``.
        dropout: probability to drop an attention weight.
        key: one for each sequence. Head h draws with ``fold_in(key, h)``; without an axis of heads, ``key`` is used.
        cap: c, for scores ``c tanh(S/c)``, or None.
        by_distance: for scores by distance, U ``[*heads, d_r, *batch, l_x]`` and P ``[H, d_r, l_z + l_x]`` of
            ``scores_by_distance``; otherwise empty.
        weights: what replaces the softmax, which only the lines as printed can compute unless it is a softmax with
            sinks; None: the softmax.
    """
    H, batch = Q.shape[0] if heads else 1, Q.shape[1 + heads : -1]
    K, V = (_with_batch(a, batch, 1 + heads) for a in (K, V))
    seeds = _seeds(key, H, heads) if dropout else None
    options = {"heads": heads, "dropout": dropout, "cap": cap}
    printed = functools.partial(_of_each, as_printed, Q, K, V, mask, seeds, by_distance, weights, **options)
    if implementation == "paper" or shows("printed"):
        return printed()
    sinks = None if weights is None else weights.sinks
    if weights is not None and sinks is None and implementation == "auto":
        return printed()
    if weights is not None and sinks is None:
        raise ValueError(f'implementation="{implementation}" is not available: {weights.says}; give "auto" or "paper"')
    if 0 in (*batch, Q.shape[-1], K.shape[-1]):
        return jnp.zeros_like(V, shape=(*V.shape[:-1], Q.shape[-1]))
    Q, K, V = (_flat(a, heads, batch) for a in (Q, K, V))
    by_distance = (_flat(by_distance[0], heads, batch), by_distance[1]) if by_distance else ()
    of_itself = isinstance(mask, StructuralMask) and mask.documents_x is mask.documents_z
    # the batch axes of the mask's arrays, merged into one
    mask = jax.tree.map(lambda a, n: a.reshape(-1, *a.shape[n:]) if n else a, mask, batch_axes(mask))
    seeds = None if seeds is None else seeds.reshape(H, -1, 2)
    scores = Scores(mask, seeds, by_distance, sinks, dropout, cap)
    name = automatic(Q, K, V, scores, platform_of(Q)) if implementation == "auto" else implementation
    _refuse(name, Q, K, V, scores)

    def of_tiles(Q, K, V, scores, first):
        if name in LIBRARY_KERNELS:
            return library_attention(LIBRARY_KERNELS[name][0], Q, K, V, scores.mask, cap, of_itself)
        return RULES[name](Q, K, V, scores if first is None else scores.counted_from(first, K.shape[-1]))

    balanced = name == "blockwise" and isinstance(mask, StructuralMask) and mask.unidirectional and mask.width is None
    V_tilde = split_attention(of_tiles, (Q, K, V), scores, scores.axes(), balanced)
    V_tilde = V_tilde.reshape(*(H,) * heads, -1, *batch, V_tilde.shape[-1])
    return beside(V_tilde, printed)  # shows S and A to an observer


def automatic(
    Q: Float[Array, "H d_attn B l_x"],
    K: Float[Array, "H_kv d_attn B l_z"],
    V: Float[Array, "H_kv d_mid B l_z"],
    scores: Scores,
    platform: str,
) -> str:
    """The meaning of ``"auto"``: the first row of this table that applies; ``docs/performance.md`` has measurements.

    ========  ==============================================================  ===============
    platform  condition                                                       implementation
    ========  ==============================================================  ===============
    gpu       cuDNN takes the input                                           ``"cudnn"``
    tpu       the Pallas kernel takes the input                               ``"pallas"``
    any       a symbolic size, in ``jax.export``                              ``"dense"``
    cpu       more than 128 x 128 scores, which fit in a few strips           ``"strips"``
    any       at most 256 x 256 scores                                        ``"dense"``
    any       otherwise                                                       ``"blockwise"``
    ========  ==============================================================  ===============
    """
    if not are_numbers(*Q.shape, *K.shape):
        return "dense"
    for name in LIBRARY_KERNELS:
        if _kernel_refuses(name, Q, K, V, scores, platform) is None:
            return name
    if platform == "cpu" and in_strips(Q.shape[-1], K.shape[-1], scores.mask):
        return "strips"
    return "dense" if Q.shape[-1] * K.shape[-1] <= 256 * 256 else "blockwise"


def _kernel_refuses(name: str, Q: Array, K: Array, V: Array, scores: Scores, platform: str) -> str | None:
    """Why a library's kernel is not available for these arguments, or None if it is."""
    if scores.sinks is not None:
        return "the kernel does not support sinks"
    if scores.by_distance:
        return "the kernel does not support ALiBi, T5 or Transformer-XL scores"
    return LIBRARY_KERNELS[name][1](Q, K, V, scores, platform)


def _refuse(name: str, Q: Array, K: Array, V: Array, scores: Scores) -> None:
    """Raise ValueError if an implementation requested by name is not available for these arguments."""
    reason = None
    if name in LIBRARY_KERNELS:
        reason = _kernel_refuses(name, Q, K, V, scores, platform_of(Q))
    elif name in ("blockwise", "strips") and not are_numbers(*Q.shape, *K.shape):
        reason = f"it needs known sizes, and got symbolic ones: {Q.shape} and {K.shape}"
    if reason is not None:
        raise ValueError(f'implementation="{name}" is not available: {reason}; give implementation="auto"')


def _of_each(as_printed, Q, K, V, mask, seeds, by_distance, weights, *, heads: bool, dropout: float, cap: float | None):
    """The lines as printed, of every head and sequence, by ``jax.vmap``."""
    own, sequences = (None, None) if weights is None else (weights.own, weights.sequences)
    of_own = jax.tree.map(lambda axis: axis - 1, sequences)  # without the axis of heads
    if heads and len(K) < len(Q):
        K, V = (jnp.repeat(a, len(Q) // len(a), axis=0) for a in (K, V))

    def of_one(Q, K, V, mask, seed, by_distance, own):
        l_z, l_x = K.shape[1], Q.shape[1]

        def drop(A):
            if seed is None:
                return A
            return jnp.where(keep_mask(seed, dropout, jnp.arange(l_z), jnp.arange(l_x)), A / (1 - dropout), 0)

        Mask = mask.dense(l_z, l_x) if isinstance(mask, StructuralMask) else mask
        D = gathered_by_distance(*by_distance, l_z=l_z) if by_distance else None
        score = functools.partial(scored, D=D, cap=cap, d_attn=Q.shape[0])
        return as_printed(Q, K, V, Mask, score, softmax_of(weights, own), drop)

    for_seeds, of_U_P = None if seeds is None else 0, (1, None)[: len(by_distance)]
    for _ in range(Q.ndim - 2 - heads):
        of_one = jax.vmap(of_one, in_axes=(1, 1, 1, sequence_axes(mask), for_seeds, of_U_P, of_own), out_axes=1)
    with for_each(Q.ndim - 2):
        if heads:
            return jax.vmap(of_one, in_axes=(0, 0, 0, None, for_seeds, 0, 0))(Q, K, V, mask, seeds, by_distance, own)
        return of_one(Q, K, V, mask, None if seeds is None else seeds[0], by_distance, own)


def softmax_of(weights: Weights | None, own: Any) -> Callable[[Array], Array]:
    """The softmax of a head, or what replaces it with the head's arrays ``own``, also for one column of scores."""
    if weights is None:
        return softmax
    return lambda S: weights.of_head(S.reshape(len(S), -1), own).reshape(S.shape)


def scored(S: Array, D: Array | None, cap: float | None, d_attn: int) -> Array:
    """The scores KᵀQ as a variant changes them: with the scores by distance D, then capped."""
    return capped(S if D is None else S + D, cap, d_attn)


def _with_batch(a: Array, batch: tuple[int, ...], at: int) -> Array:
    """Keys or values, broadcast to every sequence of the batch if they have no batch axes."""
    if a.ndim - at - 1 == len(batch):
        return a
    return jnp.broadcast_to(jnp.expand_dims(a, range(at, at + len(batch))), (*a.shape[:at], *batch, a.shape[-1]))


def _flat(a: Array, heads: bool, batch: tuple[int, ...]) -> Float[Array, "H d B l"]:
    """``[*heads, d, *batch, l]``, reshaped to one axis of heads and one of sequences."""
    rows = a.shape[:2] if heads else (1, *a.shape[:1])
    return a.reshape(*rows, math.prod(batch), a.shape[-1])


def _seeds(key: Key[Array, "*batch"] | None, H: int, heads: bool) -> Array | None:
    if key is None:
        return None
    of_heads = jax.vmap(functools.partial(fold_in, key))(jnp.arange(H)) if heads else key[None]
    return seed_of(jnp.asarray(of_heads))
