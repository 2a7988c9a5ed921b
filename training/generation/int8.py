"""Weight matrices in int8 with a scale for each row: a product reads a quarter of the bytes of float32 weights."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int8

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.platform import platform_of

LARGEST = 127  # the largest entry of a rounded row or column; −128 is not used, so that the range is symmetric

TERMS = 16
"""The number of rows of entries added up at once: as many streams as a processor's first-level cache holds."""

SMALL = 2**16
"""The number of entries up to which the product of integers is as fast for a single column."""


@functools.partial(jax.tree_util.register_dataclass, data_fields=("entries", "scales"), meta_fields=("rows",))
@dataclasses.dataclass(frozen=True, eq=False)
class Int8Matrix:
    """W ≈ diag(s) N, with integers N in [−127, 127]: the rounding error of an entry is at most half its row's scale."""

    entries: Int8[Array, "d_in n"]  # Nᵀ, the layout with the fastest product on CPUs
    scales: Float[Array, "n"]  # s
    rows: tuple[int, ...]  # the shape of the axes of rows

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the matrix before rounding, which the scales have."""
        return self.scales.dtype

    @classmethod
    def of(cls, W: Float[Array, "*rows d_in"]) -> "Int8Matrix":
        """W, rounded to nearest."""
        flat = W.reshape(-1, W.shape[-1]).astype(accumulation_dtype(W.dtype))
        scales = jnp.abs(flat).max(axis=1, keepdims=True) / LARGEST
        return cls(rounded(flat, scales)[0].T, scales[:, 0], W.shape[:-1])

    def times(self, X: Float[Array, "d_in *columns"], dtype: Any = None) -> Float[Array, "..."]:
        """``W X``, ``[*rows, *columns]``: ``diag(s) N (M + M'/254) diag(r)``, as ``X ≈ (M + M'/254) diag(r)``, of 15
        bits. The products of integers are exact, and on CPUs native in XLA if the first factor has at least two rows
        and both are row-major; even for one column, Mᵀ and M'ᵀ are two rows. A single column times a large matrix
        needs no rounding (`_times_column`).
        """
        n = math.prod(X.shape[1:])
        dtype = X.dtype if dtype is None else dtype
        if n == 1 and self.entries.size > SMALL and len(X) % TERMS == 0 and platform_of(X) == "cpu":
            return self._times_column(X.reshape(-1)).reshape(*self.rows, *X.shape[1:]).astype(dtype)
        Xt = jax.lax.optimization_barrier(X.reshape(len(X), n).T)
        r = jnp.abs(Xt).max(axis=1, keepdims=True) / LARGEST
        M, rest = rounded(Xt, r)
        rest, _ = rounded(rest, jnp.full_like(r, 0.5 / LARGEST))
        both = jax.lax.optimization_barrier(jnp.concatenate([M, rest]))
        sums = jnp.matmul(both, self.entries, preferred_element_type=jnp.int32)
        sums = jax.lax.optimization_barrier(sums).astype(accumulation_dtype(X.dtype))
        Y = (sums[:n] + sums[n:] * (0.5 / LARGEST)) * r * self.scales[None]
        return Y.T.reshape(*self.rows, *X.shape[1:]).astype(dtype)

    def _times_column(self, x: Float[Array, "d_in"]) -> Float[Array, "n"]:
        """``W x``, whose integers are widened in registers, so that memory is read at a byte an entry.

        XLA's CPU backend would widen the whole matrix before a product, and sum rows entry by entry; it fuses sums
        that are written out into loops over vectors. The first barrier keeps it from widening entries before a loop.
        """
        entries, x = jax.lax.optimization_barrier((self.entries, x.astype(accumulation_dtype(x.dtype))))
        x = x.reshape(-1, TERMS)
        entries = entries.reshape(*x.shape, -1)
        sums = jax.lax.optimization_barrier(sum(entries[:, i].astype(x.dtype) * x[:, i, None] for i in range(TERMS)))
        return jnp.ones(len(sums), x.dtype) @ sums * self.scales


def rounded(X: Float[Array, "n d"], r: Float[Array, "n 1"]) -> tuple[Int8[Array, "n d"], Float[Array, "n d"]]:
    """The integers nearest to ``X/r`` and the remainders, at most 1/2; both are 0 where r is 0."""
    X = X / jnp.where(r == 0, 1, r)
    M = jnp.round(X)
    return M.astype(jnp.int8), X - M
