"""The nonlinearities of the MLPs: ReLU, and GELU in the paper's form and in GPT-2's."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

__all__ = ["ACTIVATIONS", "gelu", "gelu_tanh", "relu"]


def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``max(0, x)``, with derivative 0 at x = 0.

    Source: lines 7 and 18 of Algorithm 8; sources/003, §12.4.5.
    """
    return jax.nn.relu(x)


def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x · P[X < x]`` for a standard normal X, which is ``x/2 · (1 + erf(x/√2))``.

    Source: equation (5), lines 7 and 10 of Algorithm 9, line 8 of Algorithm 10.
    """
    return x * (1 + jax.lax.erf(x / jnp.sqrt(2).astype(x.dtype))) / 2


def gelu_tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))``, GPT-2's approximation of GELU.

    Source: sources/002, "FeedForward Block".
    """
    return x * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi).astype(x.dtype) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}
"""Name of an activation in a ``Variant`` → the function."""
