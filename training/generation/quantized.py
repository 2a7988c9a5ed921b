"""Weight matrices in 4 or 8 bits with a scale for each block: a product reads at most a quarter of float32's bytes."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int8, Integer, UInt8

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.devices import platform_of
from algorithms.ops.linear import one_or_nan

LARGEST = 127  # the largest entry of a rounded row or column; −128 is not used, so that the range is symmetric

TERMS = (16, 32)
"""The least and the largest number of terms in a sum that is written out."""

SUMS = 4
"""The number of sums that each is added up in: a processor does not wait for one addition to begin another."""

CACHE = 4096
"""Bytes after which addresses share a set of a processor's first-level cache, which does not hold 32 rows then."""

SMALL = 2**16
"""The number of entries up to which the product of integers is as fast for a single column."""

TILE = 2**18
"""The number of entries that a product with several columns widens at once."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("entries", "scales", "minima"),
    meta_fields=("rows", "dtype", "zero"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """W, each of whose rows is in blocks of equally many entries, ``s (N − z) + m`` with small integers N.

    Those of 4 bits are two in a byte: 16 bytes have a block of 32, whose first half is in the lower bits. A block may
    be a whole row. Matrices of layers may be stacked, with an axis in front of each array.
    """

    entries: Int8[Array, "d_in n"] | UInt8[Array, "d_in/2 n"]  # Nᵀ, the layout with the fastest product on CPUs
    scales: Float[Array, "blocks n"]  # s
    minima: Float[Array, "blocks n"] | None  # m; None: 0
    rows: tuple[int, ...]  # the shape of the axes of rows
    dtype: Any  # of the matrix
    zero: int = 0  # z

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, or of the stacked ones."""
        *stack, stored, _ = self.entries.shape
        return (*stack, *self.rows, 2 * stored if self._is_packed else stored)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def arrays(self) -> tuple[Array, Array, Array | None]:
        """N, s and m."""
        return self.entries, self.scales, self.minima

    @property
    def _is_packed(self) -> bool:
        return self.entries.dtype == jnp.uint8

    @property
    def _terms(self) -> int:
        """Number of terms of a row's product with a column that are summed at once: all, or a part, of a block."""
        most = TERMS[0] if not self._is_packed and self.entries.shape[-1] % CACHE == 0 else TERMS[1]
        return math.gcd(self.shape[-1] // len(self.scales), most)

    @classmethod
    def of(cls, W: Float[Array, "*rows d_in"]) -> "QuantizedMatrix":
        """W, rounded to nearest, with a scale for each row: an entry is off by at most half of it."""
        flat = W.reshape(-1, W.shape[-1]).astype(accumulation_dtype(W.dtype))
        scales = jnp.abs(flat).max(axis=1, keepdims=True) / LARGEST
        return cls(rounded(flat, scales)[0].T, scales.T, None, W.shape[:-1], W.dtype)

    @staticmethod
    def stacked(matrices: Sequence[Any]) -> "QuantizedMatrix":
        """The matrices below one another, which have equal blocks; their axes of rows become one."""
        merged = [dataclasses.replace(W, rows=(math.prod(W.rows),)) for W in matrices]
        rows = (sum(W.rows[0] for W in merged),)
        merged = [dataclasses.replace(W, rows=rows) for W in merged]
        return jax.tree.map(lambda *a: jnp.concatenate(a, axis=1), *merged)

    def times(self, X: Float[Array, "d_in *columns"], dtype: Any = None) -> Float[Array, "..."]:
        """``W X``, ``[*rows, *columns]``, with W's entries as `values` widens them.

        On a CPU, a single column times a large matrix is `_times_column`, several columns `_by_tiles`, and with one
        scale a row, `_by_integers`. Other platforms widen W in the product.
        """
        n = math.prod(X.shape[1:])
        dtype, wide = X.dtype if dtype is None else dtype, accumulation_dtype(X.dtype)
        Xt = X.reshape(len(X), n).T
        if platform_of(X) != "cpu":
            whole = self.values(self.arrays, X.dtype)
            Y = jnp.matmul(Xt, whole, preferred_element_type=wide)
        elif n == 1 and self.entries.size > SMALL and self._terms % TERMS[0] == 0:
            Y = self._times_column(Xt[0].astype(wide))[None]
        elif len(self.scales) == 1:
            Y = self._by_integers(Xt)
        else:
            Y = self._by_tiles(Xt.astype(wide))
        return Y.T.reshape(*self.rows, *X.shape[1:]).astype(dtype)

    def values(self, arrays: Any, dtype: Any) -> Float[Array, "d_in n"]:
        """The numbers, transposed, that some columns of the `arrays` stand for, in ``dtype``."""
        entries, scales, minima = arrays
        blocks = entries.reshape(len(scales), -1, entries.shape[-1])
        if self._is_packed:
            blocks = jnp.concatenate([blocks & 15, blocks >> 4], axis=1)
        found = (blocks.astype(dtype) - self.zero) * scales[:, None].astype(dtype)
        found = found if minima is None else found + minima[:, None].astype(dtype)
        return found.reshape(-1, found.shape[-1])

    def _times_column(self, x: Float[Array, "d_in"]) -> Float[Array, "n"]:
        """``W x``, whose integers are widened in registers, so that memory is read once, at their size.

        XLA's CPU backend would widen the whole matrix before a product, and sum rows entry by entry; it fuses sums
        that are written out into loops over vectors. The first barrier keeps it from widening entries before a loop.
        """
        entries, scales, minima, x = jax.lax.optimization_barrier((*self.arrays, x))
        x = x.reshape(-1, self._terms)
        groups, blocks = entries.reshape(len(x), -1, entries.shape[-1]), len(scales)
        terms = [groups[:, i] for i in range(groups.shape[1])]
        if self._is_packed:
            terms = [term & 15 for term in terms] + [term >> 4 for term in terms]
        terms = [term.astype(x.dtype) * x[:, i, None] for i, term in enumerate(terms)]
        sums: Any = sum(sum(terms[i::SUMS]) for i in range(SUMS))
        of_x = x.sum(axis=1, keepdims=True)
        sums = sums - self.zero * of_x if self.zero else sums
        sums = sums.reshape(blocks, -1, sums.shape[-1]) * scales[:, None].astype(x.dtype)
        if minima is not None:
            sums = sums + of_x.reshape(blocks, -1, 1) * minima[:, None].astype(x.dtype)
        sums = jax.lax.optimization_barrier(sums.reshape(len(groups), -1))
        return jnp.ones(len(sums), x.dtype) @ sums

    def _by_tiles(self, Xt: Float[Array, "columns d_in"]) -> Float[Array, "columns n"]:
        """``(W X)ᵀ``, some rows of W after others, so that only these are ever widened."""
        n = self.entries.shape[-1]
        width = min(n, max(64, TILE // Xt.shape[1] // 64 * 64))

        def tile(i, Y):
            first = jnp.minimum(i * width, n - width)  # the last tile computes some rows again
            some: Any = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, first, width, axis=1), self.arrays)
            rows = jnp.matmul(Xt, self.values(some, Xt.dtype))
            return jax.lax.dynamic_update_slice_in_dim(Y, rows, first, axis=1)

        Y = jnp.zeros((len(Xt), n), Xt.dtype)
        return tile(0, Y) if width == n else jax.lax.fori_loop(0, -(-n // width), tile, Y)

    def _by_integers(self, Xt: Float[Array, "columns d_in"]) -> Float[Array, "columns n"]:
        """``diag(r) (M + M'/254)ᵀ Nᵀ diag(s)``, as ``X ≈ (M + M'/254) diag(r)``, of 15 bits. The products of integers
        are exact, and on CPUs native in XLA if the first factor has at least two rows and both are row-major; even for
        one column, Mᵀ and M'ᵀ are two rows.
        """
        n, wide = len(Xt), accumulation_dtype(Xt.dtype)
        Xt = jax.lax.optimization_barrier(Xt)
        r = jnp.abs(Xt).max(axis=1, keepdims=True) / LARGEST
        M, rest = rounded(Xt, r)
        rest, _ = rounded(rest, jnp.full_like(r, 0.5 / LARGEST))
        both = jax.lax.optimization_barrier(jnp.concatenate([M, rest]))
        sums = jnp.matmul(both, self.entries, preferred_element_type=jnp.int32)
        sums = jax.lax.optimization_barrier(sums).astype(wide)
        return (sums[:n] + sums[n:] * (0.5 / LARGEST)) * r * self.scales


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class QuantizedTable:
    """W_e, the transpose of a quantized matrix, whose columns are looked up."""

    T: QuantizedMatrix

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of W_e."""
        return self.T.shape[::-1]

    @property
    def dtype(self) -> Any:
        """The dtype of a column."""
        return self.T.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def columns(self, v: Integer[Array, "*columns"]) -> Float[Array, "d_e *columns"]:
        """``W_e[:, v]``, NaN for a token ID outside [0, N_V)."""
        W, ids = self.T, v.reshape(-1).astype(int)
        some: Any = jax.tree.map(lambda a: a.at[:, ids].get(mode="clip"), W.arrays)
        E = W.values(some, self.dtype) * one_or_nan(ids, self.shape[1])[None].astype(self.dtype)
        return E.reshape(-1, *v.shape)


def rounded(X: Float[Array, "n d"], r: Float[Array, "n 1"]) -> tuple[Int8[Array, "n d"], Float[Array, "n d"]]:
    """The integers nearest to ``X/r`` and the remainders, at most 1/2; both are 0 where r is 0."""
    X = X / jnp.where(r == 0, 1, r)
    M = jnp.round(X)
    return M.astype(jnp.int8), X - M
