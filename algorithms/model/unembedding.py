"""The last line of Algorithms 8, 9 and 10: from the residual stream to distributions over the vocabulary."""

import dataclasses
from typing import Any, ClassVar

from jax import Array
from jaxtyping import Float

from algorithms.alg07_unembedding import unembedding
from algorithms.model.line import Line
from algorithms.ops.linear import logits, tied_logits
from algorithms.ops.softmax import capped


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unembedding(Line):
    """``P ← softmax(W_u X)``, with W_u = W_eᵀ where θ has no W_u.

    Attributes:
        tied: whether initializers leave W_u out by default.
        bias: whether there is an output bias b_u.
        cap: c, for logits ``c tanh(W_u X / c)``; None: no cap.
        scaled: whether a tied W_u is W_eᵀ/√d_e, as in T5.
    """

    tied: bool = False
    bias: bool = False
    cap: float | None = None
    scaled: bool = False

    optional: ClassVar[dict[str, str]] = {"b_u": "bias"}

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.cap is not None and not self.cap > 0:
            self.refuse("cap", "a number > 0, or None")

    def matrix(self, theta: Any) -> Float[Array, "N_V d"]:
        """W_u, or W_eᵀ where it is tied."""
        if theta.W_u is not None:
            return theta.W_u
        W_u = theta.W_e.T
        return W_u * W_u.shape[1] ** -0.5 if self.scaled else W_u

    def logits(self, X: Float[Array, "d *columns"], theta: Any) -> Float[Array, "N_V *columns"]:
        """The logits, the input of the softmax."""
        if theta.W_u is None:
            X = X * X.shape[0] ** -0.5 if self.scaled else X
            return capped(tied_logits(X, theta.W_e, theta.b_u), self.cap)
        return capped(logits(X, theta.W_u, theta.b_u), self.cap)

    def __call__(self, X: Float[Array, "d *columns"], theta: Any) -> Float[Array, "N_V *columns"]:
        """The line: Algorithm 7."""
        return unembedding(X, self.matrix(theta), b_u=theta.b_u, cap=self.cap)
