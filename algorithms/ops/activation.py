"""The nonlinearities of the MLPs: ReLU, and GELU in the paper's form and in GPT-2's."""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.hand_derived import hand_derived


def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``max(0, x)``, with derivative 0 at x = 0.

    Source: lines 7 and 18 of Algorithm 8.
    """
    return jax.nn.relu(x)


def _relu_derivative(x):
    """``⟦x > 0⟧``. Source: Radu 2026, §12.4.5."""
    return (x > 0).astype(x.dtype)


def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x Φ(x) = x · P[X < x]`` for a standard normal X, with ``Φ(x) = (1 + erf(x/√2))/2``.

    Source: equation (5), lines 7 and 10 of Algorithm 9, line 8 of Algorithm 10.
    """
    return x * _normal_cdf(x)


def _normal_cdf(x):
    return (1 + jax.lax.erf(x * math.sqrt(1 / 2))) / 2


def _gelu_derivative(x):
    """``Φ(x) + x φ(x)``, with the density ``φ(x) = Φ'(x) = exp(−x²/2)/√(2π)``."""
    phi = jnp.exp(-x * x / 2) * (1 / math.sqrt(2 * math.pi))
    return _normal_cdf(x) + x * phi


def gelu_tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))``, GPT-2's approximation of GELU.

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return x * (1 + jnp.tanh(_tanh_argument(x))) / 2


def _tanh_argument(x):
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


def _gelu_tanh_derivative(x):
    """``(1 + tanh u)/2 + x/2 (1 − tanh² u) u'``, with ``u = √(2/π)(x + 0.044715 x³)``."""
    tanh_u = jnp.tanh(_tanh_argument(x))
    du = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return (1 + tanh_u) / 2 + x / 2 * (1 - tanh_u * tanh_u) * du


def silu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x σ(x)`` with ``σ(x) = 1/(1 + exp(−x))``, also called swish.

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return x * jax.lax.logistic(x)


def _silu_derivative(x):
    """``σ(x) (1 + x (1 − σ(x)))``, since ``σ' = σ (1 − σ)``."""
    sigma = jax.lax.logistic(x)
    return sigma * (1 + x * (1 - sigma))


_FUNCTIONS = {
    "relu": (relu, _relu_derivative),
    "gelu": (gelu, _gelu_derivative),
    "gelu_tanh": (gelu_tanh, _gelu_tanh_derivative),
    "silu": (silu, _silu_derivative),
}


def activate(name: str, X: Float[Array, "*shape"], implementation: str) -> Float[Array, "*shape"]:
    """The activation of that name, of every entry; ``"paper"`` leaves the derivative to JAX."""
    return (_as_printed if implementation == "paper" else _activate)(name, X)


def _as_printed(name, X):
    return _FUNCTIONS[name][0](X)


def _forward(name, X):
    return _as_printed(name, X), X


def _backward(name, X, dY):
    """``∂F/∂X = dY ⊙ f'(X)``, entry by entry."""
    return (dY * _FUNCTIONS[name][1](X),)


_activate = hand_derived(_as_printed, _forward, _backward, static=(0,))
