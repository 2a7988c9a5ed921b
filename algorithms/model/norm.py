"""The norms: lines 5, 7 and 10 of Algorithm 10, and those of Algorithms 8 and 9."""

import dataclasses
from typing import Any, ClassVar

import jax
from jax import Array
from jaxtyping import Float

from algorithms.alg06_layer_norm import layer_norm, rms_norm
from algorithms.model.line import Line
from algorithms.parameters import LayerNormParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNorm(Line):
    """Algorithm 6, with ε under the root, which is 0 in the paper.

    Attributes:
        epsilon: ε.
    """

    epsilon: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if not self.epsilon >= 0.0:
            self.refuse("epsilon", "a number >= 0")

    def __call__(self, X: Float[Array, "d *columns"], norm: Any, implementation: Any) -> Array:
        """``for t: layer_norm(X[:, t] | γ, β)``."""
        return layer_norm(X, *norm, epsilon=self.epsilon, implementation=implementation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSNorm(LayerNorm):
    """Algorithm 6 with m = β = 0.

    Attributes:
        epsilon: ε.
        offset: added to γ: Gemma stores γ − 1.
    """

    offset: float = 0.0
    optional: ClassVar[dict[str, str]] = {"beta": "never"}

    def __call__(self, X: Float[Array, "d *columns"], norm: Any, implementation: Any) -> Array:
        """``for t: rms_norm(X[:, t] | γ)``."""
        gamma = norm.gamma + self.offset if self.offset else norm.gamma
        return rms_norm(X, gamma, epsilon=self.epsilon, implementation=implementation)

    def of_heads(self, Q: Float[Array, "H d *columns"], gamma: Float[Array, "rows"], implementation: Any) -> Array:
        """The norm of every column of each head, all with the same γ; or of all heads as one, if γ has their rows."""
        each = Q.reshape(-1, *gamma.shape, *Q.shape[2:])
        return jax.vmap(lambda Q_h: self(Q_h, LayerNormParams(gamma, None), implementation))(each).reshape(Q.shape)
