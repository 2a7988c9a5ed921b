"""The linear map with a bias, ``W X + b 1ᵀ``, by which the paper applies every weight matrix."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float

from algorithms.machinery.arrays import accumulation_dtype, as_columns
from algorithms.machinery.hand_derived import hand_derived
from algorithms.machinery.options import as_printed
from algorithms.machinery.platform import platform_of
from algorithms.ops.products import product, product_over

PRODUCT = "WX"
"""The default ``checkpoint_name`` of a linear map's result, which ``remat`` may keep."""


def linear(
    W: Float[Array, "*rows d_in"] | Any,
    X: Float[Array, "d_in *columns"],
    b: Float[Array, "*rows"] | None = None,
    *,
    name: str = PRODUCT,
) -> Float[Array, "..."] | Any:
    """``W X + b 1ᵀ``, shape ``[*rows, *columns]``: the same affine map of every column.

    Several stacked matrices W (the heads of an attention) act as one matrix with more rows. ``name`` is the
    ``checkpoint_name`` of the result. Without W, the result is X.

    Source: lines 1-3 of Algorithm 4, and every other affine line.
    """
    if W is None:
        return X
    return checkpoint_name(_affine(W, X, b) if as_printed() or hasattr(W, "times") else _linear(W, X, b), name)


def _affine(W, X, b):
    Y = product(W, X)
    return Y if b is None else Y + as_columns(b, Y)


class _Residuals(NamedTuple):
    W: Array
    X: Array
    b: Array | None


def _forward(W, X, b):
    return _affine(W, X, b), _Residuals(W, X, b)


def _backward(residuals: _Residuals, dY):
    """With dY the gradient of the loss with respect to Y = W X + b 1ᵀ::

        ∂F/∂W = dY Xᵀ
        ∂F/∂X = Wᵀ dY
        ∂F/∂b = dY 1

    Source: Radu 2026, §12.4.3, transposed: tokens are columns here.
    """
    W, X, b = residuals
    dtype = accumulation_dtype(dY.dtype)
    rows, columns = tuple(range(W.ndim - 1)), range(1, X.ndim)
    columns_of_Y = tuple(range(len(rows), dY.ndim))
    dW = product_over(dY, X, (columns_of_Y, columns), dtype)
    dX = product_over(W, dY, (rows, rows), X.dtype)
    db = None if b is None else dY.sum(axis=columns_of_Y, dtype=dtype).astype(b.dtype)
    return dW.astype(W.dtype), dX.astype(X.dtype), db


_linear = hand_derived(_forward, _backward)


def tied_logits(
    X: Float[Array, "d_e *columns"], W_e: Float[Array, "d_e N_V"], b_u: Float[Array, "N_V"] | None = None
) -> Float[Array, "N_V *columns"]:
    """``W_eᵀ X (+ b_u 1ᵀ)``, in at least float32.

    Computed as ``Xᵀ W_e``, for which XLA's CPU backend reads W_e as stored. Without the barriers it would transpose W_e
    every time.
    """
    as_is = jax.lax.optimization_barrier if platform_of(X) == "cpu" else lambda Y: Y
    dtype, rows = accumulation_dtype(X.dtype), as_is(jnp.moveaxis(X, 0, -1))
    Y = jnp.moveaxis(as_is(product_over(rows, W_e, ((rows.ndim - 1,), (0,)), dtype)), -1, 0)
    return Y if b_u is None else Y + as_columns(b_u, Y).astype(dtype)


def logits(
    X: Float[Array, "d_e *columns"], W_u: Float[Array, "N_V d_e"] | Any, b_u: Float[Array, "N_V"] | None = None
) -> Float[Array, "N_V *columns"]:
    """``W_u X (+ b_u 1ᵀ)``, in at least float32."""
    dtype = accumulation_dtype(X.dtype)
    Y = product(W_u, X, dtype)
    return Y if b_u is None else Y + as_columns(b_u, Y).astype(dtype)
