"""Attention with its backward pass derived by hand, a strip of the scores at a time: the rule for CPUs, in O(ℓ) memory.

A strip contains the scores of a few queries with all keys to which the mask lets them attend, so that its softmax needs
no rescaling. Its rows are the queries, Sᵀ = QᵀK, so that sums over keys run over contiguous memory; everything else
stays in columns, and nothing is transposed. The backward pass recomputes each strip of the softmax from the
log-sum-exp of its queries.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
from jax import Array
from jax.lax import dynamic_slice_in_dim, dynamic_update_slice_in_dim
from jaxtyping import Float, Shaped

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.masks import Mask, StructuralMask
from algorithms.ops.attention.blockwise import BLOCK
from algorithms.ops.attention.tiles import Block, Part, Scores, in_groups, in_turn, kernel, transposed

T = TypeVar("T")
LEAST, LARGEST = 64, 256
"""The numbers of queries in the smallest and the largest strip; small strips skip more masked scores."""

RANGES = 8
"""The largest number of different ranges of keys; each is compiled separately."""

SCORES = 2**17
"""The number of scores computed at once, in several tiles if they are small: they fit in a core's cache."""


def in_strips(l_x: int, l_z: int, mask: Mask) -> bool:
    """Whether strips are the fastest rule on a CPU, where tiles are not so small that they are faster side by side.

    Strips of long sequences do not fit in a core's cache, and only ``"blockwise"`` skips what a length, a prefix or
    blocks rule out.
    """
    skipped = isinstance(mask, StructuralMask) and any(a is not None for a in (mask.length, mask.prefix, mask.blocks_z))
    return max(l_x, l_z) <= (BLOCK if skipped else LARGEST * RANGES)


def _for_each_tile(of_tile, matrices, mask, seeds):
    """``of_tile`` of every head and sequence, with as many side by side as have ``SCORES`` scores in a strip."""
    l_x, l_z = matrices[0].shape[-1], matrices[1].shape[-1]
    return in_groups(of_tile, matrices, mask, seeds, n=max(1, SCORES // (_rows_of_strips(l_x) * l_z)))


def _rows_of_strips(l_x: int) -> int:
    return min(max(LEAST, -(-l_x // RANGES)), LARGEST)


class _Strip(NamedTuple):
    x: Part
    z: Part
    scores: Scores
    l_x: int

    @property
    def block(self) -> Block:
        """The strip's scores, whose rows are the queries."""
        return self.scores.block(self.z, self.x, self.l_x, turned=True)

    def queries(self, a: Shaped[Array, "d l_x"]) -> Shaped[Array, "d n"]:
        return dynamic_slice_in_dim(a, self.x.first, self.x.n, 1)

    def with_queries(self, a: Float[Array, "d l_x"], columns: Float[Array, "d n"]) -> Float[Array, "d l_x"]:
        return dynamic_update_slice_in_dim(a, columns.astype(a.dtype), self.x.first, 1)

    def with_distances(self, dP: Float[Array, "d_r _"], columns: Float[Array, "d_r n"]) -> Float[Array, "d_r _"]:
        at = Scores.first_distance(self.z, self.x, self.l_x)
        return dynamic_update_slice_in_dim(dP, columns + dynamic_slice_in_dim(dP, at, columns.shape[1], 1), at, 1)

    @property
    def keys(self) -> slice:
        return slice(self.z.first, self.z.first + self.z.n)


def _for_each_strip(step: Callable[[_Strip, T], T], state: T, l_z: int, l_x: int, scores: Scores) -> T:
    """``state`` after ``step(strip, state)`` for every strip; consecutive strips with one range of keys form a loop."""
    rows = _rows_of_strips(l_x)
    whole, rest = divmod(l_x, rows)
    at_once = max(1, -(-whole // RANGES))
    parts = [(i * rows, rows, min(at_once, whole - i)) for i in range(0, whole, at_once)]
    parts += [(whole * rows, rest, 1)] if rest else []
    for first, n, count in parts:
        z = _keys_of(first, first + n * count, l_z, scores.mask)

        def visit(i, state, first=first, n=n, z=z):
            return step(_Strip(Part(first + i * n, n), z, scores, l_x), state)

        state = in_turn(count, visit, state) if count > 1 else visit(0, state)
    return state


def _keys_of(first: int, end: int, l_z: int, mask: Mask) -> Part:
    """A range that contains all keys to which the mask lets the queries from ``first`` to ``end − 1`` attend."""
    if not isinstance(mask, StructuralMask) or mask.first is not None:
        return Part(0, l_z)
    stop = l_z if mask.ahead is None else min(end + mask.ahead, l_z)
    start = 0 if mask.width is None else min(max(0, first - mask.width + 1), stop)
    return Part(start, stop - start)


def _forward_of_tile(Q, K, V, scores):
    """Strip by strip::

        Sᵀ = QᵀK/√d_attn,  −∞ where the mask is False
        Wᵀ = e^{Sᵀ − m},   m = max Sᵀ of each row,   s = Σ Wᵀ of each row
        Ṽ  = V W / s

    and log-sum-exp m + log s (+∞ for a query with nothing to attend to, whose Ṽ is 0).
    """
    dtype = accumulation_dtype(Q.dtype)

    def of_strip(strip, out):
        block = strip.block
        S = block.masked(block.scaled(strip.queries(Q), K[:, strip.keys]))
        m = S.max(axis=1, keepdims=True, initial=-jnp.inf)
        m = jnp.where(jnp.isneginf(m), 0, m)
        W = jnp.exp(S - m)
        s = W.sum(axis=1, keepdims=True)
        empty, s = s == 0, jnp.where(s == 0, 1, s)
        W = (W * block.keep).astype(V.dtype)
        V_tilde = jnp.matmul(V[:, strip.keys], W.T, preferred_element_type=dtype) / s.T
        found = V_tilde, jnp.where(empty, jnp.inf, m + jnp.log(s)).T
        return tuple(map(strip.with_queries, out, found))

    out = jnp.zeros_like(V, shape=(len(V), Q.shape[1])), jnp.zeros_like(Q, dtype, shape=(1, Q.shape[1]))
    return _for_each_strip(of_strip, out, K.shape[1], Q.shape[1], scores)


def _backward_of_tile(Q, K, V, V_tilde, E, log_sum_exp, scores):
    """With E = ∂F/∂Ṽ and δ = Σ_i Ṽ ⊙ E of each column, which is aᵀ(∂F/∂a), strip by strip::

        Aᵀ       = exp(QᵀK/√d_attn − log-sum-exp),  0 where the mask is False
        (∂F/∂S)ᵀ = Aᵀ ⊙ (D ⊙ EᵀV − δ) /√d_attn
        ∂F/∂V    = Σ E (A ⊙ D)ᵀ
        ∂F/∂K    = Σ Q (∂F/∂S)ᵀ
        ∂F/∂Q    = K ∂F/∂S

    with D and the other factors of the scores in `Block.backward`. The factor 1/√d_attn is applied to the sums over all
    strips.

    Source: incml 2023, in the form a ⊙ g − (aᵀg) a; Radu 2026, §12.4.6.
    """
    dtype = log_sum_exp.dtype
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    delta = (V_tilde.astype(dtype) * E.astype(dtype)).sum(axis=0, keepdims=True)
    arrays, scale = (Q, K, V, *scores.by_distance), len(Q) ** -0.5

    def of_strip(strip, sums):
        dQ, dK, dV, *by_U_P = sums
        z, Q_x, E_x, block = strip.keys, strip.queries(Q), strip.queries(E), strip.block
        S = block.scaled(Q_x, K[:, z])
        A = jnp.exp(block.masked(S) - strip.queries(log_sum_exp).T)
        dS = block.backward(S, A, product(transposed(E_x), V[:, z]) * block.keep, strip.queries(delta).T)
        dV = dV.at[:, z].add(product(E_x, (A * block.keep).astype(E.dtype)))
        put = strip.with_queries, strip.with_distances
        by_U_P = [f(*of) for f, *of in zip(put, by_U_P, block.by_distance_backward(dS), strict=False)]
        dS = dS.astype(Q.dtype)
        dK = dK.at[:, z].add(product(Q_x, dS))
        return strip.with_queries(dQ, product(K[:, z], dS.T)), dK, dV, *by_U_P

    sums = tuple(jnp.zeros_like(a, dtype) for a in arrays)
    dQ, dK, dV, *by_U_P = _for_each_strip(of_strip, sums, K.shape[1], Q.shape[1], scores)
    gradients = dQ * scale, dK * scale, dV, *(a * scale for a in by_U_P)
    return tuple(d.astype(a.dtype) for d, a in zip(gradients, arrays, strict=True))


strips_attention = kernel(_for_each_tile, _forward_of_tile, _backward_of_tile)
