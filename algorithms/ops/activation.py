"""Activations: ReLU and its square, GELU in the paper's form and by two approximations, SiLU; and the softmax."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.options import hand_derived

Function = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]


def _rounded_once(f: Function) -> Function:
    """``f``, computed in at least float32 and rounded to the dtype of x at the end."""

    @functools.wraps(f)
    def rounded(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return f(x.astype(accumulation_dtype(x.dtype))).astype(x.dtype)

    return rounded


def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``max(0, x)``, with derivative 0 at x = 0.

    Source: lines 7 and 18 of Algorithm 8.
    """
    return jax.nn.relu(x)


def _relu_derivative(x):
    """``⟦x > 0⟧``. Source: Radu 2026, §12.4.5."""
    return (x > 0).astype(x.dtype)


def relu_squared(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``max(0, x)²``.

    Source: So et al. 2021, "Primer", section 3.
    """
    return jnp.square(relu(x))


def _relu_squared_derivative(x):
    """``2 max(0, x)``."""
    return 2 * relu(x)


@_rounded_once
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x Φ(x) = x · P[X < x]`` for a standard normal X, with ``Φ(x) = erfc(−x/√2)/2``.

    Φ equals ``(1 + erf(x/√2))/2``, which suffers from cancellation for negative x.

    Source: equation (5), lines 7 and 10 of Algorithm 9, line 8 of Algorithm 10.
    """
    return x * _normal_cdf(x)


def _normal_cdf(x):
    return jax.lax.erfc(-x * math.sqrt(1 / 2)) / 2


@_rounded_once
def _gelu_derivative(x):
    """``Φ(x) + x φ(x)``, with the density ``φ(x) = Φ'(x) = exp(−x²/2)/√(2π)``."""
    phi = jnp.exp(-x * x / 2) * (1 / math.sqrt(2 * math.pi))
    return _normal_cdf(x) + x * phi


@_rounded_once
def gelu_tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))``, GPT-2's approximation of GELU.

    Computed as ``x σ(2u)``, which is the same: ``1 + tanh u`` suffers from cancellation for negative u.

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return x * jax.lax.logistic(2 * _tanh_argument(x))


def _tanh_argument(x):
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


@_rounded_once
def _gelu_tanh_derivative(x):
    """``σ(2u) (1 + 2x (1 − σ(2u)) u')``, with ``u = √(2/π)(x + 0.044715 x³)``."""
    sigma = jax.lax.logistic(2 * _tanh_argument(x))
    du = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return sigma * (1 + 2 * x * (1 - sigma) * du)


@_rounded_once
def gelu_sigmoid(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x σ(1.702 x)``, an approximation of GELU, also called quick GELU.

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return x * jax.lax.logistic(1.702 * x)


@_rounded_once
def _gelu_sigmoid_derivative(x):
    """``σ(1.702 x) (1 + 1.702 x (1 − σ(1.702 x)))``, since ``σ' = σ (1 − σ)``."""
    sigma = jax.lax.logistic(1.702 * x)
    return sigma * (1 + 1.702 * x * (1 - sigma))


@_rounded_once
def silu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x σ(x)`` with ``σ(x) = 1/(1 + exp(−x))``, also called swish.

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return x * jax.lax.logistic(x)


@_rounded_once
def _silu_derivative(x):
    """``σ(x) (1 + x (1 − σ(x)))``, since ``σ' = σ (1 − σ)``."""
    sigma = jax.lax.logistic(x)
    return sigma * (1 + x * (1 - sigma))


_FUNCTIONS = {
    "relu": (relu, _relu_derivative),
    "relu_squared": (relu_squared, _relu_squared_derivative),
    "gelu": (gelu, _gelu_derivative),
    "gelu_tanh": (gelu_tanh, _gelu_tanh_derivative),
    "gelu_sigmoid": (gelu_sigmoid, _gelu_sigmoid_derivative),
    "silu": (silu, _silu_derivative),
}


def xielu(x: Float[Array, "*shape"], alpha_p: Float[Array, ""], alpha_n: Float[Array, ""]) -> Float[Array, "*shape"]:
    """``softplus(α_p) x² + x/2`` where x > 0, and ``(½ + softplus(α_n)) (e^x − 1 − x) + x/2`` elsewhere.

    Source: Huang and Schlag 2024, "Deriving Activation Functions Using Integration".
    """
    dtype = accumulation_dtype(x.dtype)
    y, alpha_p, alpha_n = x.astype(dtype), *map(jax.nn.softplus, (alpha_p.astype(dtype), alpha_n.astype(dtype)))
    negative = jnp.minimum(y, 0)  # where an overflow would poison the gradient
    Y = jnp.where(y > 0, alpha_p * y * y, (1 / 2 + alpha_n) * (jnp.expm1(negative) - negative)) + y / 2
    return Y.astype(x.dtype)


def _value(name, X):
    return _FUNCTIONS[name][0](X)


def _backward(name, residuals, dY):
    """``∂F/∂X = dY ⊙ f'(X)``, entry by entry."""
    (X,) = residuals
    return (dY * _FUNCTIONS[name][1](X),)


activate = hand_derived(None, _backward, static=(0,), value=_value)
"""``activate(name, X)``: the activation of this name, elementwise."""


def softmax(A: Float[Array, "rows *columns"] | Any) -> Any:
    """``exp A[i, t] / Σ_j exp A[j, t]`` over the rows of each column; 0 in a column that is all −∞, or empty.

    Scores that wait for their product with values, `LazyScores`, go on waiting.

    Source: Phuong and Hutter 2022, equation (2).
    """
    waits = getattr(A, "softmax", None)
    if waits is not None:
        return waits()
    numerator = jnp.exp(shifted(A))
    denominator = numerator.sum(axis=0, keepdims=True)
    return numerator / jnp.where(denominator == 0, 1, denominator)


def log_softmax(A: Float[Array, "rows *columns"]) -> Float[Array, "rows *columns"]:
    """The logarithm of ``softmax``, without underflow; −∞ in a column that is all −∞."""
    A = shifted(A)
    denominator = jnp.exp(A).sum(axis=0, keepdims=True)
    return A - jnp.log(jnp.where(denominator == 0, 1, denominator))


def shifted(A: Float[Array, "rows *columns"]) -> Float[Array, "rows *columns"]:
    """A minus the largest entry of each column, which changes neither the softmax nor its derivative."""
    largest = A.max(axis=0, keepdims=True, initial=-jnp.inf)
    return A - jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0, largest))


def capped(S: Float[Array, "*shape"], cap: float | None, d_attn: int = 1) -> Float[Array, "*shape"]:
    """``c √d_attn tanh(S/(c √d_attn))``: scores or logits whose size, after division by √d_attn, is at most c.

    Source: Gemma Team 2024, section 2.
    """
    if cap is None:
        return S
    c = cap * d_attn**0.5
    return c * jnp.tanh(S / c)


def capped_derivative(S: Float[Array, "*shape"], cap: float) -> Float[Array, "*shape"]:
    """``1 − tanh²(S/c)``, the derivative of ``c tanh(S/c)``."""
    return 1 - jnp.square(jnp.tanh(S / cap))
