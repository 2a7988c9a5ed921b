"""Norms: lines 5, 7 and 10 of Algorithm 10, and the layer norms of Algorithms 8 and 9."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.alg06_layer_norm import layer_norm, rms_norm
from algorithms.machinery.contract import array
from algorithms.model.line import Line
from algorithms.notation import Epsilon
from algorithms.parameters import LayerNormParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNorm(Line):
    """Algorithm 6.

    Attributes:
        epsilon: ε, added to the variance; 0 in the paper.
        gamma: whether there is γ; otherwise it is 1.
        beta: whether there is β; otherwise it is 0.
    """

    epsilon: Epsilon = 0.0
    gamma: bool = True
    beta: bool = True

    def shapes(self, d: str = "d_e") -> LayerNormParams:
        """The shapes of γ and β."""
        return LayerNormParams(gamma=array(d, self.gamma, start=1.0), beta=array(d, self.beta))

    def __call__(self, X: Float[Array, "d *columns"], norm: Any) -> Array:
        """``for t: layer_norm(X[:, t] | γ, β)``."""
        gamma = jnp.ones(len(X), X.dtype) if norm.gamma is None else norm.gamma
        beta = jnp.zeros_like(gamma) if norm.beta is None else norm.beta
        return layer_norm(X, gamma, beta, epsilon=self.epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSNorm(LayerNorm):
    """Algorithm 6 with m = β = 0.

    Attributes:
        epsilon: ε, added to the mean square.
        gamma: whether there is γ; otherwise it is 1.
        offset: added to γ; 1 for Gemma, which stores γ − 1.
    """

    beta: ClassVar[bool] = False
    offset: float = 0.0

    def shapes(self, d: str = "d_e") -> LayerNormParams:
        """The shape of γ."""
        return LayerNormParams(gamma=array(d, self.gamma, start=1.0 - self.offset), beta=None)

    def __call__(self, X: Float[Array, "d *columns"], norm: Any) -> Array:
        """``for t: rms_norm(X[:, t] | γ)``."""
        gamma = norm.gamma + self.offset if self.offset and self.gamma else norm.gamma
        gamma = jnp.ones(len(X), X.dtype) if gamma is None else gamma
        return rms_norm(X, gamma, epsilon=self.epsilon)

    def of_heads(
        self, Q: Float[Array, "H d *columns"], gamma: Any, together: bool = False
    ) -> Float[Array, "H d *columns"]:
        """Normalizes each column of each head by the same γ; or of all heads ``together``, whose rows γ then has."""
        each = Q.reshape(1 if together else len(Q), Q.shape[1] * (len(Q) if together else 1), *Q.shape[2:])
        return jax.vmap(lambda Q_h: self(Q_h, LayerNormParams(gamma, None)))(each).reshape(Q.shape)
