"""The last line of Algorithms 8, 9 and 10: distributions over the vocabulary."""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Float

from algorithms.alg07_unembedding import unembedding
from algorithms.machinery.record import Positive, Record
from algorithms.notation import Cap
from algorithms.ops.linear import logits, tied_logits
from algorithms.ops.softmax import capped


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unembedding(Record):
    """``P ← softmax(W_u X)``, with W_u = W_eᵀ where θ has no W_u.

    Attributes:
        tied: whether initializers leave out W_u by default.
        bias: whether there is an output bias b_u.
        factor: factor of the logits.
        cap: c: logits y, times their factor, become ``c tanh(y/c)``; None: no cap.
        scaled: whether a tied W_u is W_eᵀ/√d_e, as in T5.
    """

    tied: bool = False
    bias: bool = False
    factor: Positive = 1.0
    cap: Cap = None
    scaled: bool = False

    def matrix(self, theta: Any) -> Float[Array, "N_V d"] | Any:
        """W_u; if it is tied, W_eᵀ, scaled if the line says so; times the factor of the logits."""
        W_u = theta.W_e.T if theta.W_u is None else theta.W_u
        factor = self._factor(theta)
        return W_u if factor == 1 else W_u * factor

    def logits(self, X: Float[Array, "d *columns"], theta: Any) -> Float[Array, "N_V *columns"]:
        """The input of the softmax: ``W_u X + b_u 1ᵀ``, capped."""
        factor = self._factor(theta)
        X = X if factor == 1 else X * factor
        if theta.W_u is None:
            return capped(tied_logits(X, theta.W_e, theta.b_u), self.cap)
        return capped(logits(X, theta.W_u, theta.b_u), self.cap)

    def __call__(self, X: Float[Array, "d *columns"], theta: Any) -> Float[Array, "N_V *columns"]:
        """``softmax(W_u X)``, by Algorithm 7."""
        return unembedding(X, self.matrix(theta), b_u=theta.b_u, cap=self.cap)

    def _factor(self, theta: Any) -> float:
        return self.factor * (len(theta.W_e) ** -0.5 if self.scaled and theta.W_u is None else 1)
