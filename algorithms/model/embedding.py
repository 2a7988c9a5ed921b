"""The first three lines and the last of Algorithms 8 to 10: embeddings of tokens, and distributions over them."""

import dataclasses
from typing import Annotated, Any, Literal

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from algorithms.alg01_embedding import positional_embedding, sinusoid, token_embedding, unembedding
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.contract import array
from algorithms.machinery.record import Positive, Range, Record
from algorithms.model.norm import LayerNorm
from algorithms.notation import Cap
from algorithms.ops.activation import capped
from algorithms.ops.linear import logits, tied_logits
from algorithms.parameters import EmbeddingParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding(Record):
    """``e_t ← W_e[:, x[t]] + W_p[:, t]``.

    Attributes:
        positions: ``"learned"`` adds W_p. ``"sinusoidal"`` adds sines and cosines of t/10000^{2i/d_e}, alternating;
            ``"sinusoidal_halves"`` adds the same, all sines before all cosines. None adds nothing.
        first_position: the position of the first token, after as many unused columns of W_p.
        scaled: whether W_e[:, x[t]] is multiplied by √d_e, or by √d_e rounded to bfloat16, as in RecurrentGemma.
        factor: of W_e[:, x[t]], if it is another.
        normalized: whether the variant's norm follows, as in BERT.
        context_positions: whether the context of Algorithm 8 has its own W_p, as in BART.
        factored: whether W_e has d_in rows and ``W_in X + b_in 1ᵀ`` follows, as in ALBERT. Only for Algorithm 9, whose
            line 10 returns to d_f = d_in rows.
    """

    positions: Literal["learned", "sinusoidal", "sinusoidal_halves"] | None = "learned"
    first_position: Annotated[int, Range("a number >= 0", lambda t: t >= 0)] = 0
    scaled: bool | Literal["bfloat16"] = False
    factor: Positive = 1.0
    normalized: bool = False
    context_positions: bool = False
    factored: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scaled and self.factor != 1:
            self.refuse("factor", "1 where scaled = True")

    def shapes(self, norm: LayerNorm) -> EmbeddingParams:
        """The shapes of its matrices, and of the norm that may follow."""
        d = "d_in" if self.factored else "d_e"
        W_p = array(f"{d} l_max", self.positions == "learned", role="embedding")
        return EmbeddingParams(array(f"{d} N_V", role="embedding"), W_p, norm.shapes(d) if self.normalized else None)

    def tokens(self, x: Integer[Array, "*columns"], theta: Any) -> Float[Array, "d_in *columns"]:
        """``W_e[:, x[t]]`` for every token, by Algorithm 1, scaled if the line says so."""
        columns = getattr(theta.W_e, "columns", None)  # of another form of a matrix
        E = token_embedding(x, theta.W_e) if columns is None else columns(x)
        root = jnp.sqrt(E.shape[0])
        root = root.astype(jnp.bfloat16) if self.scaled == "bfloat16" else root
        scaled = E if self.factor == 1 else E * self.factor
        return E * root.astype(E.dtype) if self.scaled else scaled

    def of_positions(self, t: Any, theta: Any) -> Float[Array, "d_in *#columns"] | None:
        """``W_p[:, t]`` for every position, by Algorithm 2, or sinusoids; None if the line adds nothing to X."""
        if self.positions is None:
            return None
        t = self.first_position + t
        if self.positions == "learned":
            return positional_embedding(jnp.asarray(t), theta.W_p)
        d_in, dtype = theta.W_e.shape[0], theta.W_e.dtype
        W_p = sinusoid(t, d_in, base=10000, form=self.positions, dtype=accumulation_dtype(dtype))
        return jnp.asarray(W_p, dtype)

    def limit(self, theta: Any) -> int | None:
        """The longest sequence that θ has positions for; None if there is no limit."""
        return None if theta.W_p is None else theta.W_p.shape[1] - self.first_position


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unembedding(Record):
    """``P ← softmax(W_u X)``, with W_u = W_eᵀ where θ has no W_u.

    Attributes:
        tied: whether initializers leave out W_u by default.
        bias: whether there is an output bias b_u.
        factor: factor of the logits.
        cap: c: logits y, times their factor, become ``c tanh(y/c)``; None: no cap.
        scaled: whether a tied W_u is W_eᵀ/√d_e, as in T5.
        projected: whether Algorithm 10 has lines 10 and 11 of Algorithm 9 after its own line 10, as in Ettin.
    """

    tied: bool = False
    bias: bool = False
    factor: Positive = 1.0
    cap: Cap = None
    scaled: bool = False
    projected: bool = False

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
