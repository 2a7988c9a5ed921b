"""Attention with its backward pass derived by hand, a block of the scores at a time: O(ℓ) memory.

The forward pass goes through the blocks of a column with an online softmax and keeps only each column's log-sum-exp;
the backward pass recomputes each block of the softmax from it. Blocks that a structural mask rules out are skipped.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import dynamic_slice_in_dim, dynamic_update_slice_in_dim
from jaxtyping import Bool, Float, Integer

from algorithms.machinery.arrays import accumulation_dtype, are_numbers
from algorithms.masks import Mask, StructuralMask
from algorithms.ops.attention.distances import scaled_scores, scores_by_distance_backward
from algorithms.ops.attention.tiles import for_each_tile, in_turn, kernel
from algorithms.ops.dropout import keep_mask
from algorithms.ops.softmax import capped, capped_derivative

T = TypeVar("T")
BLOCK = 512
"""The largest number of rows and of columns in a block of scores."""
NARROWEST = 128
"""The same for a narrow window: products of smaller blocks would be slow."""


class _Blocks:
    """The division of the scores of one tile, ``[l_z, l_x]``, into blocks, some of which the mask rules out."""

    def __init__(self, l_z: int, l_x: int, mask: Mask, seed: Array | None, dropout: float) -> None:
        self.l_z, self.l_x, self.seed, self.dropout = l_z, l_x, seed, dropout
        largest = _largest(mask)
        self.n_z, self.b_z = _cut(l_z, largest)
        self.n_x, self.b_x = _cut(l_x, largest)
        self.mask = (
            mask
            if isinstance(mask, StructuralMask)
            else jnp.pad(mask, ((0, self.n_z * self.b_z - l_z), (0, self.n_x * self.b_x - l_x)))
        )

    def padded(self, array: Array, primary: bool, value: float = 0.0) -> Array:
        """``array``, its columns padded to whole blocks of primary or of context tokens."""
        columns = self.n_x * self.b_x if primary else self.n_z * self.b_z
        return jnp.pad(array, ((0, 0), (0, columns - array.shape[1])), constant_values=value)

    def distances(self, P: Array) -> Array:
        """P as ``[distances, d_r]``, padded to whole blocks of both sequences."""
        return jnp.pad(P.T, ((self.n_x * self.b_x - self.l_x, self.n_z * self.b_z - self.l_z), (0, 0)))

    def crop(self, dP: Array) -> Array:
        """The gradient of P, from the gradient of ``distances(P)``."""
        first = self.n_x * self.b_x - self.l_x
        return dP[first : first + self.l_z + self.l_x].T

    def first_distance(self, j: int | Array, i: int | Array) -> int | Array:
        """The first of the ``b_z + b_x`` rows of ``distances`` that the block (j, i) needs."""
        return j * self.b_z + (self.n_x - 1 - i) * self.b_x

    def over_context(self, i: int | Array, step: Callable[[Array, bool | Array, T], T], state: T) -> T:
        """``state`` after ``step(j, visited, state)`` for the context blocks j to which the primary block i may attend.

        If visited is False, the mask rules out the whole block: the number of steps is fixed, so that the loop has
        derivatives of every order.
        """
        first, end = self._context_of(i)

        def visit(k, state):
            return step(first + k, are_numbers(first, end) or first + k < end, state)

        return in_turn(self._most_visited(), visit, state)

    def _most_visited(self) -> int:
        """The largest number of context blocks to which a primary block attends."""
        mask = self.mask
        if isinstance(mask, StructuralMask) and mask.width is not None:
            tokens = self.b_x + mask.width - 1 + (mask.ahead or 0)
            return min(self.n_z, -(-(tokens - 1) // self.b_z) + 1)
        return self.n_z

    def _context_of(self, i: int | Array) -> tuple[int | Array, int | Array]:
        """The first context block that the primary block i visits, and the one after the last."""
        first, end, mask = 0, self.n_z, self.mask
        if isinstance(mask, StructuralMask) and self.n_z > 1:
            position = i * self.b_x if mask.first is None else mask.first + i * self.b_x
            if mask.ahead is not None:
                end = jnp.minimum(end, (position + self.b_x - 1 + mask.ahead) // self.b_z + 1)
            if mask.width is not None:
                first = jnp.maximum(position - mask.width + 1, 0) // self.b_z
            if mask.prefix is not None:
                visible = jnp.maximum(position + self.b_x, jnp.asarray(mask.prefix, jnp.int32))
                end = jnp.minimum(end, -(-visible // self.b_z))
            if mask.length is not None:
                end = jnp.minimum(end, -(-jnp.asarray(mask.length, jnp.int32) // self.b_z))
            if mask.blocks_z is not None:
                end = jnp.minimum(end, self._end_of_blocks(mask, i))
        return first, end

    def _end_of_blocks(self, mask: StructuralMask, i: int | Array) -> Array:
        """One more than the last context block with a token whose number is at most the largest of primary block i."""
        _, t_x = self._tokens(0, i)
        largest, numbers = mask.blocks_x[jnp.minimum(t_x, self.l_x - 1)].max(), mask.blocks_z
        return jnp.where(numbers <= largest, jnp.arange(len(numbers)) // self.b_z + 1, 0).max()

    def permitted(self, j: int | Array, i: int | Array) -> Bool[Array, "b_z b_x"]:
        """The block (j, i) of the mask; False for the padding after the sequences."""
        if isinstance(self.mask, StructuralMask):
            t_z, t_x = self._tokens(j, i)
            return self.mask.permits(t_z[:, None], t_x[None, :]) & (t_z[:, None] < self.l_z)
        return jax.lax.dynamic_slice(self.mask, (j * self.b_z, i * self.b_x), (self.b_z, self.b_x))

    def keep_scale(self, j: int | Array, i: int | Array) -> Float[Array, "b_z b_x"] | int:
        """D of the block (j, i): 0 where an attention weight is dropped, 1/(1 − rate) where it is kept."""
        if self.seed is None:
            return 1
        return jnp.where(keep_mask(self.seed, self.dropout, *self._tokens(j, i)), 1 / (1 - self.dropout), 0)

    def _tokens(self, j: int | Array, i: int | Array) -> tuple[Integer[Array, "b_z"], Integer[Array, "b_x"]]:
        """The indices of the context tokens and of the primary tokens of the block (j, i)."""
        return j * self.b_z + jnp.arange(self.b_z), i * self.b_x + jnp.arange(self.b_x)


def _largest(mask: Mask) -> int:
    """The largest number of tokens in a block: fewer for a narrow window, which rules out most of a wide block."""
    width = mask.width if isinstance(mask, StructuralMask) else None
    return BLOCK if width is None else min(BLOCK, max(NARROWEST, width))


def _cut(l: int, largest: int) -> tuple[int, int]:
    """The number of blocks that hold l tokens, and the tokens of each, at most ``largest``."""
    n = -(-l // largest)
    return n, -(-l // n)


def _where(visited: bool | Array, of_block: Callable[[], T], otherwise: T) -> T:
    return of_block() if visited is True else jax.lax.cond(visited, of_block, lambda: otherwise)


def _forward_of_tile(matrices, mask, seed, dropout, cap):
    """Online softmax, over the context blocks j of each primary block i::

        S = KᵀQ/√d_attn,  −∞ where the mask is False
        m' = max(m, max S),   s' = s e^{m−m'} + Σ e^{S−m'},   Ṽ' = Ṽ e^{m−m'} + V e^{S−m'}

    and in the end Ṽ/s, with log-sum-exp m + log s (+∞ in a column with nothing to attend to, whose Ṽ is 0).
    """
    Q, K, V, *by_distance = matrices
    dtype = accumulation_dtype(Q.dtype)
    blocks = _Blocks(K.shape[1], Q.shape[1], mask, seed, dropout)
    U, P = _of_distances(blocks, by_distance)
    Q = blocks.padded(Q, primary=True)
    K, V = blocks.padded(K, primary=False), blocks.padded(V, primary=False)

    def of_primary(i, out):
        Q_i = dynamic_slice_in_dim(Q, i * blocks.b_x, blocks.b_x, 1)

        def of_context(j, state):
            m, s, V_tilde = state
            K_j = dynamic_slice_in_dim(K, j * blocks.b_z, blocks.b_z, 1)
            V_j = dynamic_slice_in_dim(V, j * blocks.b_z, blocks.b_z, 1)
            S = scaled_scores(Q_i, K_j, _of_block(blocks, U, P, j, i))
            S = jnp.where(blocks.permitted(j, i), capped(S, cap), -jnp.inf)
            larger = jnp.maximum(m, S.max(axis=0, keepdims=True))
            finite = jnp.where(jnp.isneginf(larger), 0, larger)
            weights = jnp.exp(S - finite)
            rescale = jnp.exp(m - finite)
            s = s * rescale + weights.sum(axis=0, keepdims=True)
            kept = (weights * blocks.keep_scale(j, i)).astype(V.dtype)
            V_tilde = V_tilde * rescale + jnp.matmul(V_j, kept, preferred_element_type=dtype)
            return larger, s, V_tilde

        def add_context(j, visited, state):
            return _where(visited, lambda: of_context(j, state), state)

        start = (
            jnp.full_like(Q, -jnp.inf, dtype, shape=(1, blocks.b_x)),
            jnp.zeros_like(Q, dtype, shape=(1, blocks.b_x)),
            jnp.zeros_like(Q, dtype, shape=(V.shape[0], blocks.b_x)),
        )
        m, s, V_tilde = blocks.over_context(i, add_context, start)
        empty, s = s == 0, jnp.where(s == 0, 1, s)
        V_tilde = V_tilde / s
        log_sum_exp = jnp.where(empty, jnp.inf, m + jnp.log(s))
        at = i * blocks.b_x
        return (
            dynamic_update_slice_in_dim(out[0], V_tilde.astype(V.dtype), at, 1),
            dynamic_update_slice_in_dim(out[1], log_sum_exp, at, 1),
        )

    columns = blocks.n_x * blocks.b_x
    out = jnp.zeros_like(V, shape=(V.shape[0], columns)), jnp.zeros_like(Q, dtype, shape=(1, columns))
    V_tilde, log_sum_exp = in_turn(blocks.n_x, of_primary, out)
    return V_tilde[:, : blocks.l_x], log_sum_exp[:, : blocks.l_x]


def _of_distances(blocks, by_distance):
    """U and P, each padded to whole blocks, in a tuple that is empty if there is none."""
    if not by_distance:
        return (), ()
    U, P = by_distance
    return (blocks.padded(U, primary=True),), (blocks.distances(P),)


def _of_block(blocks, U, P, j, i):
    """U and P of the block (j, i), if distances add to the scores."""
    if not U:
        return ()
    U_i = dynamic_slice_in_dim(U[0], i * blocks.b_x, blocks.b_x, 1)
    return U_i, dynamic_slice_in_dim(P[0], blocks.first_distance(j, i), blocks.b_z + blocks.b_x, 0).T


def _with_block(blocks, j, i, visited, of_block, sums):
    """The gradients of the queries of block i, and of all context tokens and distances, plus those of block (j, i)."""
    of_x, of_z = sums
    sizes = blocks.b_z, blocks.b_z, blocks.b_z + blocks.b_x
    nothing = (
        tuple(map(jnp.zeros_like, of_x)),
        tuple(jnp.zeros_like(a, shape=(n, a.shape[1])) for a, n in zip(of_z, sizes, strict=False)),
    )
    of_x_j, of_z_j = _where(visited, of_block, nothing)
    at = j * blocks.b_z
    firsts = (at, at, blocks.first_distance(j, i)) if len(of_z) == 3 else (at, at)
    of_z = tuple(
        dynamic_update_slice_in_dim(a, dynamic_slice_in_dim(a, at, n, 0) + a_j, at, 0)
        for a, a_j, at, n in zip(of_z, of_z_j, firsts, sizes, strict=False)
    )
    return tuple(a + a_j for a, a_j in zip(of_x, of_x_j, strict=True)), of_z


def _backward_of_tile(matrices, mask, seed, dropout, cap):
    """With E = ∂F/∂Ṽ and δ = Σ_i Ṽ ⊙ E of each column, which is aᵀ(∂F/∂a), block by block::

        A     = exp(KᵀQ/√d_attn − log-sum-exp),  0 where the mask is False
        ∂F/∂V = E (A ⊙ D)ᵀ
        ∂F/∂S = A ⊙ (D ⊙ VᵀE − δ) /√d_attn
        ∂F/∂Q = K ∂F/∂S
        ∂F/∂K = Q (∂F/∂S)ᵀ

    where D is 1, or with dropout 0 or 1/(1 − rate), drawn again from the seed. With a cap c the scores are
    C = c tanh(S/(c √d_attn)), and ∂F/∂S is multiplied by 1 − C²/c². Scores by distance are part of S; their rule is
    ``scores_by_distance_backward``. The factor 1/√d_attn is applied to the sums over all blocks.

    Source: incml 2023, in the form a ⊙ g − (aᵀg) a; Radu 2026, §12.4.6.
    """
    Q, K, V, V_tilde, E, log_sum_exp, *by_distance = matrices
    dtype, scale = log_sum_exp.dtype, len(Q) ** -0.5
    dtypes = tuple(a.dtype for a in (Q, K, V, *by_distance))
    blocks = _Blocks(K.shape[1], Q.shape[1], mask, seed, dropout)
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    delta = (V_tilde.astype(dtype) * E.astype(dtype)).sum(axis=0, keepdims=True)
    Q, E = blocks.padded(Q, primary=True), blocks.padded(E, primary=True)
    log_sum_exp = blocks.padded(log_sum_exp, primary=True, value=jnp.inf)
    delta = blocks.padded(delta, primary=True)
    U, P = _of_distances(blocks, by_distance)
    K, V = blocks.padded(K, primary=False), blocks.padded(V, primary=False)

    def of_primary(i, sums):
        Q_i, E_i, log_sum_exp_i, delta_i = (
            dynamic_slice_in_dim(a, i * blocks.b_x, blocks.b_x, 1) for a in (Q, E, log_sum_exp, delta)
        )

        def of_context(j):
            K_j, V_j = (dynamic_slice_in_dim(a, j * blocks.b_z, blocks.b_z, 1) for a in (K, V))
            U_P = _of_block(blocks, U, P, j, i)
            S = scaled_scores(Q_i, K_j, U_P)
            A = jnp.exp(jnp.where(blocks.permitted(j, i), capped(S, cap), -jnp.inf) - log_sum_exp_i)
            D = blocks.keep_scale(j, i)
            dV_j = product((A * D).astype(E.dtype), E_i.T)
            dS = A * (product(V_j.T, E_i) * D - delta_i)
            dS = dS if cap is None else dS * capped_derivative(S, cap)
            of_x, of_z = (product(K_j, dS.astype(K.dtype)),), (product(dS.astype(Q.dtype), Q_i.T), dV_j)
            if not by_distance:
                return of_x, of_z
            dU_ij, dP_ji = scores_by_distance_backward(*U_P, dS=dS)
            return (*of_x, dU_ij), (*of_z, dP_ji.T)

        def add_context(j, visited, sums):
            return _with_block(blocks, j, i, visited, lambda: of_context(j), sums)

        of_x, of_z = sums
        of_x_i = tuple(jnp.zeros_like(a, dtype, shape=(len(a), blocks.b_x)) for a in of_x)
        of_x_i, of_z = blocks.over_context(i, add_context, (of_x_i, of_z))
        put = (dynamic_update_slice_in_dim(a, a_i, i * blocks.b_x, 1) for a, a_i in zip(of_x, of_x_i, strict=True))
        return tuple(put), of_z

    sums = tuple(tuple(jnp.zeros_like(a, dtype) for a in arrays) for arrays in ((Q, *U), (K.T, V.T, *P)))
    (dQ, *dU), (dK, dV, *dP) = in_turn(blocks.n_x, of_primary, sums)
    dQ, *dU = (a[:, : blocks.l_x] * scale for a in (dQ, *dU))
    dK, dV = dK[: blocks.l_z].T * scale, dV[: blocks.l_z].T
    gradients = dQ, dK, dV, *dU, *(blocks.crop(a) * scale for a in dP)
    return tuple(a.astype(dtype) for a, dtype in zip(gradients, dtypes, strict=True))


blockwise_attention = kernel(for_each_tile, _forward_of_tile, _backward_of_tile)
