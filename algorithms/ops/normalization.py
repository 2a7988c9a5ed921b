"""Algorithm 6 and RMSnorm of every column, with a hand-derived backward pass."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from algorithms.machinery.arrays import accumulation_dtype, as_columns
from algorithms.machinery.hand_derived import hand_derived


class _Residuals(NamedTuple):
    X: Array
    m: Array | None  # mean of each column; None in RMSnorm
    r: Array  # 1/√(v + ε) of each column
    gamma: Array
    beta: Array | None


def _layer_norm_forward(epsilon, X, gamma, beta):
    e = X.astype(accumulation_dtype(X.dtype))
    m = e.mean(axis=0, keepdims=True)
    r = 1 / jnp.sqrt(jnp.square(e - m).mean(axis=0, keepdims=True) + epsilon)
    e_hat = (e - m) * r * as_columns(gamma, e) + as_columns(beta, e)
    return e_hat.astype(X.dtype), _Residuals(X, m, r, gamma, beta)


def _rms_norm_forward(epsilon, X, gamma):
    e = X.astype(accumulation_dtype(X.dtype))
    r = 1 / jnp.sqrt(jnp.square(e).mean(axis=0, keepdims=True) + epsilon)
    return (e * r * as_columns(gamma, e)).astype(X.dtype), _Residuals(X, None, r, gamma, None)


def _backward(epsilon, residuals: _Residuals, dY):
    """With x̂ = (X − m) r the normalized columns, r = 1/√(v + ε), and g = γ ⊙ dY, column by column::

        ∂F/∂γ = Σ_t dY ⊙ x̂
        ∂F/∂β = Σ_t dY
        ∂F/∂X = r (g                          directly
                   − 1 Σ_i g[i]/d_e           through the mean (not in RMSnorm)
                   − x̂ Σ_i g[i] x̂[i]/d_e)     through the variance

    Source: Radu 2026, §12.4.4.
    """
    X, m, r, gamma, beta = residuals
    dY = dY.astype(r.dtype)
    x_hat = (X.astype(r.dtype) - (0 if m is None else m)) * r
    g = as_columns(gamma, dY) * dY
    tokens = tuple(range(1, X.ndim))
    through_mean = 0 if m is None else g.mean(axis=0, keepdims=True)
    dX = r * (g - through_mean - x_hat * (g * x_hat).mean(axis=0, keepdims=True))
    dgamma = (dY * x_hat).sum(tokens)
    gradients = dX.astype(X.dtype), dgamma.astype(gamma.dtype)
    return gradients if beta is None else (*gradients, dY.sum(tokens).astype(beta.dtype))


layer_norm = hand_derived(_layer_norm_forward, _backward, static=(0,))
rms_norm = hand_derived(_rms_norm_forward, _backward, static=(0,))
