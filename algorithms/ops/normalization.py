"""The backward pass of Algorithm 6 and RMSnorm, derived by hand."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from algorithms.machinery.arrays import accumulation_dtype, as_columns
from algorithms.machinery.devices import platform_of
from algorithms.machinery.options import as_printed, hand_derived


class _Residuals(NamedTuple):
    X: Array
    m: Array | None  # mean of each column; None in RMSnorm
    r: Array  # 1/√(v + ε) of each column
    gamma: Array
    beta: Array | None


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


def with_rule(lines: Callable[..., Array]) -> Callable[..., Array]:
    """The lines of a norm, ``(e, gamma, epsilon=…)`` or with β as layer norm has it, with the backward pass by hand."""

    def value(epsilon, X, *parameters):
        return lines(X, *parameters, epsilon=epsilon)

    def forward(epsilon, X, gamma, beta=None):
        e = X.astype(accumulation_dtype(X.dtype))
        m = None if beta is None else e.mean(axis=0, keepdims=True)
        r = 1 / jnp.sqrt(jnp.square(e if m is None else e - m).mean(axis=0, keepdims=True) + epsilon)
        parameters = (gamma,) if beta is None else (gamma, beta)
        return value(epsilon, X, *parameters), _Residuals(X, m, r, gamma, beta)

    rule = hand_derived(forward, _backward, static=(0,), value=value)

    @functools.wraps(lines)
    def norm(e, gamma, beta=None, *, epsilon=0.0):
        parameters = (gamma,) if beta is None else (gamma, beta)
        if as_printed() and e.shape[1:] == (1,) and platform_of(e) == "gpu":
            return value(epsilon, _twice(e), *parameters)[:, :1]
        return rule(epsilon, e, *parameters)

    return norm


def _twice(X: Array) -> Array:
    """A single column, twice: XLA's GPU backend then computes a norm in the kernel of the product that reads it, and
    otherwise in three of its own, since it fuses no sum that is a scalar. The barrier keeps it from seeing that.
    """
    return jax.lax.optimization_barrier(jnp.broadcast_to(X.T, (2, len(X)))).T
