"""The last line of Algorithms 8, 9 and 10: distributions over the vocabulary."""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Float

from algorithms.alg07_unembedding import unembedding
from algorithms.machinery.record import Record
from algorithms.notation import Cap
from algorithms.ops.linear import logits, tied_logits
from algorithms.ops.softmax import capped


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unembedding(Record):
    """``P ← softmax(W_u X)``, with W_u = W_eᵀ where θ has no W_u.

    Attributes:
        tied: whether initializers leave out W_u by default.
        bias: whether there is an output bias b_u.
        cap: c: logits y become ``c tanh(y/c)``; None: no cap.
        scaled: whether a tied W_u is W_eᵀ/√d_e, as in T5.
    """

    tied: bool = False
    bias: bool = False
    cap: Cap = None
    scaled: bool = False

    def matrix(self, theta: Any) -> Float[Array, "N_V d"]:
        """W_u; if it is tied, W_eᵀ, scaled if the line says so."""
        if theta.W_u is not None:
            return theta.W_u
        W_u = theta.W_e.T
        return W_u * W_u.shape[1] ** -0.5 if self.scaled else W_u

    def logits(self, X: Float[Array, "d *columns"], theta: Any) -> Float[Array, "N_V *columns"]:
        """The input of the softmax: ``W_u X + b_u 1ᵀ``, capped."""
        if theta.W_u is None:
            X = X * X.shape[0] ** -0.5 if self.scaled else X
            return capped(tied_logits(X, theta.W_e, theta.b_u), self.cap)
        return capped(logits(X, theta.W_u, theta.b_u), self.cap)

    def __call__(self, X: Float[Array, "d *columns"], theta: Any) -> Float[Array, "N_V *columns"]:
        """``softmax(W_u X)``, by Algorithm 7."""
        return unembedding(X, self.matrix(theta), b_u=theta.b_u, cap=self.cap)
