"""Attention with its backward pass derived by hand, a block of the scores at a time: O(ℓ) memory.

The forward pass goes through the blocks of a column with an online softmax and stores only each column's log-sum-exp;
the backward pass recomputes each block of the softmax from it. Blocks that a structural mask rules out are skipped.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import dynamic_slice_in_dim, dynamic_update_slice_in_dim

from algorithms.machinery.arrays import accumulation_dtype, are_numbers
from algorithms.masks import StructuralMask
from algorithms.ops.attention.tiles import Block, Part, Scores, for_each_tile, in_turn, kernel

T = TypeVar("T")
BLOCK = 512
"""The largest number of rows and of columns in a block of scores."""
NARROWEST = 128
"""The same for a narrow window: products of smaller blocks would be slow."""


class _Blocks:
    """The division of the scores of one tile, ``[l_z, l_x]``, into blocks, some of which the mask rules out."""

    def __init__(self, l_z: int, l_x: int, scores: Scores) -> None:
        self.l_z, self.l_x, mask = l_z, l_x, scores.mask
        # fewer tokens for a narrow window, which rules out most of a wide block
        width = mask.width if isinstance(mask, StructuralMask) else None
        largest = BLOCK if width is None else min(BLOCK, max(NARROWEST, width))
        self.n_z, self.b_z = _cut(l_z, largest)
        self.n_x, self.b_x = _cut(l_x, largest)
        self.more_z, self.more_x = self.n_z * self.b_z - l_z, self.n_x * self.b_x - l_x
        self.mask, U_P = mask, scores.by_distance
        if not isinstance(mask, StructuralMask):
            mask = jnp.pad(mask, ((0, self.more_z), (0, self.more_x)))
        if U_P:
            U_P = self.padded(U_P[0], primary=True), jnp.pad(U_P[1], ((0, 0), (self.more_x, self.more_z)))
        self.scores = dataclasses.replace(scores, mask=mask, by_distance=U_P)

    def padded(self, array: Array, primary: bool, value: float = 0.0) -> Array:
        """``array``, its columns padded to whole blocks of primary or of context tokens."""
        return jnp.pad(array, ((0, 0), (0, self.more_x if primary else self.more_z)), constant_values=value)

    def crop(self, dP: Array) -> Array:
        """The gradient of P, from the transposed gradient of the padded P."""
        return dP[self.more_x : self.more_x + self.l_z + self.l_x].T

    def of(self, j: int | Array, i: int | Array) -> tuple[Part, Part]:
        return Part(j * self.b_z, self.b_z), Part(i * self.b_x, self.b_x)

    def block(self, j: int | Array, i: int | Array) -> Block:
        """The block (j, i) of the scores; padding is masked."""
        z, x = self.of(j, i)
        block = self.scores.block(z, x, self.n_x * self.b_x)
        if isinstance(self.mask, StructuralMask):
            block = block._replace(mask=block.mask & (z.tokens()[:, None] < self.l_z))
        return block

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
                # one more than the last context block with a token whose number is at most the largest of block i
                t_x, numbers = self.of(0, i)[1].tokens(), mask.blocks_z
                largest = mask.blocks_x[jnp.minimum(t_x, self.l_x - 1)].max()
                visible = jnp.where(numbers <= largest, jnp.arange(len(numbers)) // self.b_z + 1, 0)
                end = jnp.minimum(end, visible.max())
        return first, end


def _cut(l: int, largest: int) -> tuple[int, int]:
    """The number of blocks that hold l tokens, and the tokens of each, at most ``largest``."""
    n = -(-l // largest)
    return n, -(-l // n)


def _where(visited: bool | Array, of_block: Callable[[], T], otherwise: T) -> T:
    return of_block() if visited is True else jax.lax.cond(visited, of_block, lambda: otherwise)


def _forward_of_tile(Q, K, V, scores):
    """Online softmax, over the context blocks j of each primary block i::

        S = KᵀQ/√d_attn,  −∞ where the mask is False
        m' = max(m, max S),   s' = s e^{m−m'} + Σ e^{S−m'},   Ṽ' = Ṽ e^{m−m'} + V e^{S−m'}

    and in the end Ṽ/s, with log-sum-exp m + log s (+∞ in a column with nothing to attend to, whose Ṽ is 0).
    """
    dtype, blocks = accumulation_dtype(Q.dtype), _Blocks(K.shape[1], Q.shape[1], scores)
    Q = blocks.padded(Q, primary=True)
    K, V = blocks.padded(K, primary=False), blocks.padded(V, primary=False)

    def of_primary(i, out):
        Q_i = dynamic_slice_in_dim(Q, i * blocks.b_x, blocks.b_x, 1)

        def of_context(j, state):
            m, s, V_tilde = state
            K_j = dynamic_slice_in_dim(K, j * blocks.b_z, blocks.b_z, 1)
            V_j = dynamic_slice_in_dim(V, j * blocks.b_z, blocks.b_z, 1)
            block = blocks.block(j, i)
            S = block.masked(block.scaled(Q_i, K_j))
            larger = jnp.maximum(m, S.max(axis=0, keepdims=True))
            finite = jnp.where(jnp.isneginf(larger), 0, larger)
            weights = jnp.exp(S - finite)
            rescale = jnp.exp(m - finite)
            s = s * rescale + weights.sum(axis=0, keepdims=True)
            kept = (weights * block.keep).astype(V.dtype)
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
        found = V_tilde.astype(V.dtype), log_sum_exp
        return tuple(dynamic_update_slice_in_dim(a, a_i, i * blocks.b_x, 1) for a, a_i in zip(out, found, strict=True))

    columns = blocks.n_x * blocks.b_x
    out = jnp.zeros_like(V, shape=(V.shape[0], columns)), jnp.zeros_like(Q, dtype, shape=(1, columns))
    V_tilde, log_sum_exp = in_turn(blocks.n_x, of_primary, out)
    return V_tilde[:, : blocks.l_x], log_sum_exp[:, : blocks.l_x]


def _with_block(blocks, j, i, visited, of_block, sums):
    """The gradients of the queries of block i, and of all context tokens and distances, plus those of block (j, i)."""
    of_x, of_z = sums
    sizes = blocks.b_z, blocks.b_z, blocks.b_z + blocks.b_x
    nothing = (
        tuple(map(jnp.zeros_like, of_x)),
        tuple(jnp.zeros_like(a, shape=(n, a.shape[1])) for a, n in zip(of_z, sizes, strict=False)),
    )
    of_x_j, of_z_j = _where(visited, of_block, nothing)
    z, x = blocks.of(j, i)
    firsts = z.first, z.first, Scores.first_distance(z, x, blocks.n_x * blocks.b_x)
    of_z = tuple(
        dynamic_update_slice_in_dim(a, dynamic_slice_in_dim(a, at, n, 0) + a_j, at, 0)
        for a, a_j, at, n in zip(of_z, of_z_j, firsts, sizes, strict=False)  # P only if there are distances
    )
    return tuple(a + a_j for a, a_j in zip(of_x, of_x_j, strict=True)), of_z


def _backward_of_tile(Q, K, V, V_tilde, E, log_sum_exp, scores):
    """With E = ∂F/∂Ṽ and δ = Σ_i Ṽ ⊙ E of each column, which is aᵀ(∂F/∂a), block by block::

        A     = exp(KᵀQ/√d_attn − log-sum-exp),  0 where the mask is False
        ∂F/∂V = E (A ⊙ D)ᵀ
        ∂F/∂S = A ⊙ (D ⊙ VᵀE − δ) /√d_attn
        ∂F/∂Q = K ∂F/∂S
        ∂F/∂K = Q (∂F/∂S)ᵀ

    with D and the other factors of the scores in `Block.backward`. The factor 1/√d_attn is applied to the sums over all
    blocks.

    Source: incml 2023, in the form a ⊙ g − (aᵀg) a; Radu 2026, §12.4.6.
    """
    dtype, scale = log_sum_exp.dtype, len(Q) ** -0.5
    dtypes = tuple(a.dtype for a in (Q, K, V, *scores.by_distance))
    blocks = _Blocks(K.shape[1], Q.shape[1], scores)
    U, P = blocks.scores.by_distance[:1], blocks.scores.by_distance[1:]
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    delta = (V_tilde.astype(dtype) * E.astype(dtype)).sum(axis=0, keepdims=True)
    Q, E = blocks.padded(Q, primary=True), blocks.padded(E, primary=True)
    log_sum_exp = blocks.padded(log_sum_exp, primary=True, value=jnp.inf)
    delta = blocks.padded(delta, primary=True)
    K, V = blocks.padded(K, primary=False), blocks.padded(V, primary=False)

    def of_primary(i, sums):
        Q_i, E_i, log_sum_exp_i, delta_i = (
            dynamic_slice_in_dim(a, i * blocks.b_x, blocks.b_x, 1) for a in (Q, E, log_sum_exp, delta)
        )

        def of_context(j):
            K_j, V_j = (dynamic_slice_in_dim(a, j * blocks.b_z, blocks.b_z, 1) for a in (K, V))
            block = blocks.block(j, i)
            S = block.scaled(Q_i, K_j)
            A = jnp.exp(block.masked(S) - log_sum_exp_i)
            dV_j = product((A * block.keep).astype(E.dtype), E_i.T)
            dS = block.backward(S, A, product(V_j.T, E_i) * block.keep, delta_i)
            dU, dP = (block.by_distance_backward(dS)[k : k + 1] for k in (0, 1))
            of_x = product(K_j, dS.astype(K.dtype)), *dU
            return of_x, (product(dS.astype(Q.dtype), Q_i.T), dV_j, *(a.T for a in dP))

        def add_context(j, visited, sums):
            return _with_block(blocks, j, i, visited, lambda: of_context(j), sums)

        of_x, of_z = sums
        of_x_i = tuple(jnp.zeros_like(a, dtype, shape=(len(a), blocks.b_x)) for a in of_x)
        of_x_i, of_z = blocks.over_context(i, add_context, (of_x_i, of_z))
        put = (dynamic_update_slice_in_dim(a, a_i, i * blocks.b_x, 1) for a, a_i in zip(of_x, of_x_i, strict=True))
        return tuple(put), of_z

    arrays = (Q, *U), (K.T, V.T, *(a.T for a in P))
    sums = tuple(tuple(jnp.zeros_like(a, dtype) for a in of) for of in arrays)
    (dQ, *dU), (dK, dV, *dP) = in_turn(blocks.n_x, of_primary, sums)
    dQ, *dU = (a[:, : blocks.l_x] * scale for a in (dQ, *dU))
    dK, dV = dK[: blocks.l_z].T * scale, dV[: blocks.l_z].T
    gradients = dQ, dK, dV, *dU, *(blocks.crop(a) * scale for a in dP)
    return tuple(a.astype(dtype) for a, dtype in zip(gradients, dtypes, strict=True))


blockwise_attention = kernel(for_each_tile, _forward_of_tile, _backward_of_tile)
