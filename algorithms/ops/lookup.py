"""Lookup of a column of a matrix for each index, as in Algorithms 1 and 2, and its backward pass."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, as_ids
from algorithms.machinery.hand_derived import hand_derived
from algorithms.machinery.options import as_printed

ONE_HOT_LIMIT = 1024
"""The number of columns up to which the gradient of the matrix is a matrix product, not a scatter."""


def columns(W: Float[Array, "d_e n"]) -> Any:
    """The matrix W, whose columns are looked up by ``[:, v]``, for one index v or an array of them.

    For an index outside [0, n) the value and the gradient are NaN, never those of another column.
    """
    return _Columns(W, _columns if as_printed() else _lookup)


@dataclasses.dataclass(frozen=True)
class _Columns:
    W: Array
    look_up: Callable[[Array, Array], Array]

    def __getitem__(self, rows_and_columns: Any) -> Array:
        _, v = rows_and_columns
        return self.look_up(self.W, as_ids(v))


def _columns(W, v):
    E = W.at[:, v].get(mode="clip")
    return E * one_or_nan(v, W.shape[1])[None].astype(E.dtype)


def one_or_nan(v: Integer[Array, "*shape"], n: int) -> Float[Array, "*shape"]:
    """1 for an index in [0, n), NaN for any other: a factor that makes a value and its gradient NaN."""
    return jnp.where((v >= 0) & (v < n), 1.0, jnp.nan)


def _forward(W, v):
    return _columns(W, v), (W, v)


def _backward(residuals, dE):
    """The gradient of a column of W is the sum over all positions of its token::

        ∂F/∂W[:, j] = Σ_{t: v[t] = j} dE[:, t]

    For a small vocabulary the product of dE and the one-hot matrix of v is faster.

    Source: Radu 2026, §12.4.8.
    """
    W, v = residuals
    d_e, n = W.shape
    dE = dE.astype(accumulation_dtype(dE.dtype))
    dE, v = dE * one_or_nan(v, n)[None].astype(dE.dtype), jnp.clip(v, 0, n - 1)
    if are_numbers(*v.shape):  # JAX cannot merge axes of symbolic sizes
        dE, v = dE.reshape(d_e, -1), v.reshape(-1)
    if n <= ONE_HOT_LIMIT:
        dW = jnp.tensordot(dE, jax.nn.one_hot(v, n, dtype=dE.dtype), axes=v.ndim)
    else:
        dW = jnp.zeros_like(dE, shape=(n, d_e)).at[v].add(jnp.moveaxis(dE, 0, -1)).T
    return dW.astype(W.dtype), None


_lookup = hand_derived(_forward, _backward, value=_columns)
