"""Products of rows with the matrix of the group that each row is in: rows in blocks, of one group each.

``jax.lax.ragged_dot`` is for GPUs and TPUs. On a CPU it would multiply every row by every matrix, so blocks are
multiplied one after another there. On a TPU it does so for the gradients of the matrices: JAX's Pallas kernels, which
do not, are for bfloat16 there.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.devices import match_varying_axes, platform_of, varies_over
from algorithms.machinery.options import hand_derived
from algorithms.ops.linear import product, product_over

LARGEST, SMALLEST = 256, 8
"""The numbers of rows that a block may have, unless each row is a block."""

TILE = 128
"""The numbers of rows and columns that the kernels for TPUs read at once are multiples of this."""

UNROLLED = 16
"""The number of single rows up to which a program has the product of each: its compiler then says how much it reads."""


class Blocks(NamedTuple):
    """An assignment of R rows to S slots in m blocks of S/m; each block has rows of a single group."""

    group: Int[Array, "m"]  # the group of each block; n for blocks without rows, which are the last
    row: Int[Array, "S"]  # the row in each place; R where there is none
    place: Int[Array, "R"]  # the place of each row; S for rows that are in none of the groups

    @staticmethod
    def of(group: Int[Array, "R"], n: int) -> "Blocks":
        """Arrange rows by their groups; a row of another group than 0 … n − 1 gets no place.

        Up to n rows are n blocks; each reads one matrix.
        """
        R = len(group)
        within = (group >= 0) & (group < n)
        if n >= R:
            here = jnp.where(within, jnp.arange(R), R)
            return Blocks(jnp.where(within, group, n), here, here)
        group, b = jnp.where(within, group, n), _rows_of_a_block(R, n)
        of_tile = max(1, TILE // b)
        m = (R + n * (b - 1)) // b  # the most blocks that there can be: every group leaves at most b − 1 places
        m = -(-m // of_tile) * of_tile
        order = jnp.argsort(group, stable=True)
        rows_of = jnp.zeros(n + 1, int).at[group].add(1)
        blocks_of = -(-rows_of[:n] // b)
        first_row = jnp.cumsum(rows_of) - rows_of
        first_place = jnp.append(b * (jnp.cumsum(blocks_of) - blocks_of), 0)
        of_sorted = group[order]
        sorted_place = first_place[of_sorted] + jnp.arange(R) - first_row[of_sorted]
        place = jnp.zeros(R, int).at[order].set(jnp.where(of_sorted < n, sorted_place, m * b))
        row = jnp.full(m * b, R).at[place].set(jnp.arange(R), mode="drop")
        return Blocks(jnp.searchsorted(jnp.cumsum(blocks_of), jnp.arange(m), side="right"), row, place)


def _rows_of_a_block(R: int, n: int) -> int:
    """A power of 2, small enough that on average at most an eighth of the slots are empty."""
    b = SMALLEST
    while b < LARGEST and 8 * b * n < R:
        b *= 2
    return b


def spread(X: Float[Array, "T d"], blocks: Blocks) -> Float[Array, "S d"]:
    """Row r mod T of X in the slot of each row r; 0 in empty slots."""
    R, T = len(blocks.place), len(X)
    return _gathered(X, jnp.where(blocks.row < R, blocks.row % T, T), blocks.place.reshape(-1, T))


def collect(Y: Float[Array, "S d"], blocks: Blocks) -> Float[Array, "R d"]:
    """The rows of Y from their slots; 0 for rows without one."""
    return _gathered(Y, blocks.place, blocks.row[None])


def _gather_forward(X, index, back):
    return jnp.take(X, index, axis=0, mode="fill", fill_value=0), (back, len(X))


def _gather_backward(residuals, dY):
    """``∂F/∂X[t] = Σ_j dY[back[j, t]]``, where ``back`` says which rows of the result are row t of X."""
    back, _ = residuals
    return jnp.take(dY, back, axis=0, mode="fill", fill_value=0).sum(axis=0, dtype=dY.dtype), None, None


_gathered = hand_derived(_gather_forward, _gather_backward)


def grouped_product(
    W: Float[Array, "n d_out d_in"], X: Float[Array, "S d_in"], blocks: Blocks
) -> Float[Array, "S d_out"]:
    """``W_g X[i]`` for the rows i of every block, which is of group g; 0 for blocks of no group."""
    if len(X) == len(blocks.group) and platform_of(X) != "cpu":  # each row is a block: read only its matrix
        return jnp.einsum("roi,ri->ro", jnp.take(W, blocks.group, axis=0, mode="clip"), X)
    return _product(1, W, X, blocks.group)


def _by_group(axis: int, W: Array, X: Array, group: Array) -> Array:
    """Every row of X times the matrix of its group, summed over this axis of the matrix."""
    if platform_of(X) != "cpu":
        return _ragged(X, W, group, len(W), (((1,), (1 + axis,)), ((), ())), of_groups=(0,))

    def of_block(X, g):
        mine = jax.lax.dynamic_index_in_dim(W, g, keepdims=False)
        if axis == 1 and len(X) == 1:
            return product(mine, X.T).T
        return product_over(X, mine, ((1,), (axis,)), X.dtype)

    def unless_empty(_, block):
        X, g = block
        nothing = jnp.zeros_like(X, shape=(len(X), W.shape[1 if axis == 1 else 2]))
        return None, of_block(X, g) if len(X) == 1 else jax.lax.cond(g < len(W), of_block, lambda *_: nothing, X, g)

    unroll = len(X) == len(group) <= UNROLLED
    Y = jax.lax.scan(unless_empty, None, (_in_blocks(X, group), group), unroll=unroll)[1]
    return Y.reshape(len(X), -1)


def _by_rows(n: int, Y: Array, X: Array, group: Array) -> Array:
    """The sum of ``Y[i] X[i]ᵀ`` over the rows i of each group, in at least float32."""
    dtype = accumulation_dtype(Y.dtype)
    if platform_of(X) != "cpu":
        return _ragged(Y, X, group, n, (((0,), (0,)), ((), ())), of_groups=()).astype(dtype)

    def add(total, block):
        Y, X, g = block
        product = product_over(Y, X, ((0,), (0,)), dtype)
        before = jax.lax.dynamic_index_in_dim(total, g, keepdims=False)
        return jax.lax.dynamic_update_index_in_dim(total, before + product, g, 0), None

    zero = match_varying_axes((jnp.zeros((n, Y.shape[1], X.shape[1]), dtype), Y, X, group))[0]
    return jax.lax.scan(add, zero, (_in_blocks(Y, group), _in_blocks(X, group), group))[0]


def _in_blocks(X: Array, group: Array) -> Array:
    return X.reshape(len(group), -1, X.shape[-1])


def _ragged(A: Array, B: Array, group: Array, n: int, dimensions: Any, *, of_groups: tuple[int, ...]) -> Array:
    """The ragged product; under vmap one after another, since JAX's own rule needs all arguments to have the axis."""
    numbers = jax.lax.RaggedDotDimensionNumbers(dimensions, (0,), of_groups)

    @jax.custom_batching.sequential_vmap
    def ragged(A, B, group):
        b = len(A) // len(group)
        rows = b * jnp.zeros(n, jnp.int32).at[group].add(1, mode="drop")
        if not _has_kernel(A, B):
            return jax.lax.ragged_dot_general(A, B, rows, numbers, preferred_element_type=A.dtype)
        from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm  # importing it takes half a second

        if not of_groups:
            return tgmm(A.T, B, rows, A.dtype, _tiles)
        Y = gmm(A, B, rows, A.dtype, _tiles, transpose_rhs=dimensions[0][1] == (2,))
        return jnp.where(jnp.repeat(group < n, b)[:, None], Y, 0)  # rows of no group are not written

    return ragged(A, B, group)


def _has_kernel(A: Array, B: Array) -> bool:
    """Whether JAX's Pallas kernels for TPUs support this product."""
    in_tiles = not any(size % TILE for size in (*A.shape, *B.shape[-2:]))
    narrow = A.dtype == B.dtype == jnp.bfloat16 and not getattr(jax.config, "jax_enable_x64", False)
    return platform_of(A) == "tpu" and narrow and in_tiles and not varies_over((A, B))


def _tiles(m: int, k: int, n: int) -> tuple[int, int, int]:
    """The tile sizes of a kernel: few and similar, with little padding."""

    def tile(size):
        return -(-size // (-(-size // 1024) * TILE)) * TILE

    return math.gcd(m, 2 * TILE), tile(k), tile(n)


def _forward(axis, W, X, group):
    return _product(axis, W, X, group), (W, X, group)


def _backward(axis, residuals, dY):
    """With dY the gradient with respect to the rows ``Y[i] = W_g X[i]`` (axis 1), or ``W_gᵀ X[i]`` (axis 0)::

    ∂F/∂X[i] = W_gᵀ dY[i], or W_g dY[i]
    ∂F/∂W_g = Σ_i dY[i] X[i]ᵀ, or Σ_i X[i] dY[i]ᵀ, over the rows i of group g
    """
    W, X, group = residuals
    Y, X = (dY, X) if axis == 1 else (X, dY)
    return _sum_of_rows(len(W), Y, X, group).astype(W.dtype), _product(1 - axis, W, dY, group), None


_product = hand_derived(_forward, _backward, static=(0,), value=_by_group)


def _forward_of_rows(n, Y, X, group):
    return _sum_of_rows(n, Y, X, group), (Y, X, group)


def _backward_of_rows(_, residuals, dW):
    """With dW the gradient with respect to ``W_g = Σ_i Y[i] X[i]ᵀ`` over the rows i of group g::

    ∂F/∂Y[i] = dW_g X[i]
    ∂F/∂X[i] = dW_gᵀ Y[i]
    """
    Y, X, group = residuals
    dW = dW.astype(Y.dtype)
    return _product(1, dW, X, group), _product(0, dW, Y, group), None


_sum_of_rows = hand_derived(_forward_of_rows, _backward_of_rows, static=(0,), value=_by_rows)
