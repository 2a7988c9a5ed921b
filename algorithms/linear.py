"""The linear map with a bias, ``W X + b 1ᵀ``, which every weight matrix of the paper takes part in."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.notation import accumulation_dtype, as_columns
from algorithms.reverse_mode import is_hand_derived, reverse_only

__all__ = ["linear"]


def linear(
    W: Float[Array, "*rows d_in"], X: Float[Array, "d_in *columns"], b: Float[Array, "*rows"], implementation: str
) -> Float[Array, "..."]:
    """``W X + b 1ᵀ``, shape ``[*rows, *columns]``: the same affine map of every column.

    Args:
        W: the weights; several stacked ones (the heads of an attention) act as one matrix of more rows.
        X: the columns.
        b: the bias.
        implementation: ``"paper"`` leaves the derivative to JAX.

    Source: lines 1-3 of Algorithm 4, and every other affine line.
    """
    return _linear(*reverse_only((W, X, b))) if is_hand_derived(implementation) else _as_printed(W, X, b)


def _as_printed(W, X, b):
    Y = jnp.tensordot(W, X, 1)
    return Y + as_columns(b, Y)


class _Residuals(NamedTuple):
    W: Array
    X: Array
    b: Array


_linear = jax.custom_vjp(_as_printed)


def _forward(W, X, b):
    return _as_printed(W, X, b), _Residuals(W, X, b)


def _backward(residuals: _Residuals, dY):
    """With dY the gradient of the loss by Y = W X + b 1ᵀ::

        ∂F/∂W = dY Xᵀ
        ∂F/∂X = Wᵀ dY
        ∂F/∂b = dY 1

    Source: sources/003, §12.4.3, transposed: tokens are columns here.
    """
    W, X, b = residuals
    dtype = accumulation_dtype(dY.dtype)
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    W_2, X_2, dY_2 = (a.reshape(n, -1) for a, n in ((W, b.size), (X, X.shape[0]), (dY, b.size)))
    dW = product(dY_2, X_2.T).reshape(W.shape)
    dX = product(W_2.T, dY_2).reshape(X.shape)
    db = dY_2.sum(axis=1, dtype=dtype).reshape(b.shape)
    return dW.astype(W.dtype), dX.astype(X.dtype), db.astype(b.dtype)


_linear.defvjp(_forward, _backward)
