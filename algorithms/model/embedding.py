"""Lines 1 to 3 of Algorithms 9 and 10, and 1 to 3 and 10 to 12 of Algorithm 8: from tokens to embeddings."""

import dataclasses
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from algorithms.alg01_embedding import positional_embedding, sinusoid, token_embedding
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.model.line import Line
from algorithms.ops.linear import linear


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding(Line):
    """``e_t ← W_e[:, x[t]] + W_p[:, t]``.

    Attributes:
        positions: ``"learned"`` adds W_p; ``"sinusoidal"`` adds sin and cos of t/10000^{2i/d_e} by turns,
            ``"sinusoidal_halves"`` all sines before all cosines, ``"sinusoidal_fairseq"`` likewise with
            10000^{2i/(d_e − 2)}; None adds nothing: queries and keys know where they are, or nothing does.
            ``"in_attention"`` adds W_p to what queries and keys read, in all layers, and to nothing else.
        first_position: the number of the first token's position; W_p has as many columns more.
        scaled: multiply W_e[:, x[t]] by √d_e.
        normalized: a norm of the variant's kind follows, as in BERT.
        context_positions: the context of Algorithm 8 has a W_p of its own, as in BART.
        factored: embeddings have d_in rows, and ``W_in X + b_in 1ᵀ`` follows, as in ALBERT; Algorithm 9 alone has that,
            whose line 10 leads back to d_f = d_in rows.
    """

    positions: Literal["learned", "in_attention", "sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq"] | None = (
        "learned"
    )
    first_position: int = 0
    scaled: bool = False
    normalized: bool = False
    context_positions: bool = False
    factored: bool = False

    optional: ClassVar[dict[str, str]] = {
        "W_p": "positions=learned,in_attention",
        "embedding_norm": "normalized",
        "context_positions": "context_positions positions=learned",
        "W_in": "factored",
        "b_in": "factored",
    }

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.first_position < 0:
            self.refuse("first_position", "a number >= 0")

    def tokens(self, x: Integer[Array, "*columns"], theta: Any, implementation: Any) -> Float[Array, "d_in *columns"]:
        """``W_e[:, x[t]]`` of every token (Algorithm 1)."""
        E = token_embedding(x, theta.W_e, implementation=implementation)
        return E * jnp.sqrt(E.shape[0]).astype(E.dtype) if self.scaled else E

    def of_positions(self, t: Any, theta: Any, implementation: Any) -> Float[Array, "d_in *#columns"] | None:
        """``W_p[:, t]`` of every position (Algorithm 2), or sinusoids; None where the line adds nothing."""
        if self.positions in (None, "in_attention"):
            return None
        if self.positions == "learned":
            return self._learned(t, theta, implementation)
        t = self.first_position + t
        d_in, dtype = theta.W_e.shape[0], theta.W_e.dtype
        W_p = sinusoid(t, d_in, base=10000, form=self.positions, dtype=accumulation_dtype(dtype))
        return jnp.asarray(W_p, dtype)

    def projected(
        self, X: Float[Array, "d_in *columns"], theta: Any, implementation: Any
    ) -> Float[Array, "d_e *columns"]:
        """``W_in X + b_in 1ᵀ``; X itself where embeddings have d_e rows."""
        return linear(theta.W_in, X, theta.b_in, implementation) if self.factored else X

    def in_attention(self, t: Any, theta: Any, implementation: Any) -> Float[Array, "d_e *#columns"] | None:
        """``W_p[:, t]`` of every position, which queries and keys read beside X; None where they read X alone."""
        return self._learned(t, theta, implementation) if self.positions == "in_attention" else None

    def _learned(self, t, theta, implementation):
        return positional_embedding(jnp.asarray(self.first_position + t), theta.W_p, implementation=implementation)

    def limit(self, theta: Any) -> int | None:
        """The longest sequence that θ has positions for; None where nothing limits it."""
        return None if theta.W_p is None else theta.W_p.shape[1] - self.first_position
