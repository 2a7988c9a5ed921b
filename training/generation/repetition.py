"""Control over repetition: what came before changes the scores of what may come, as in the library transformers."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

__all__ = ["History", "penalized"]


class History(NamedTuple):
    """All tokens of B sequences so far, prompts included, and how many each has."""

    tokens: Int[Array, "B T"]
    lengths: Int[Array, "B"]

    def with_token(self, y: Int[Array, "B"]) -> "History":
        """Return the history with one more token of each sequence."""
        rows = jnp.arange(len(y))
        return History(self.tokens.at[rows, self.lengths].set(y), self.lengths + 1)


def penalized(
    scores: Float[Array, "N_V B"], history: History, *, penalty: float | Float[Array, ""] | None, ngram: int
) -> Float[Array, "N_V B"]:
    """Return the scores of what may come next, which the softmax makes a distribution of.

    Args:
        scores: the model's.
        history: of the sequences.
        penalty: what the score of a token that was there before is divided by if it is positive, and multiplied by if
            it is negative (Keskar et al. 2019; transformers' ``repetition_penalty``); None: nothing.
        ngram: no so many tokens in a row may come twice (transformers' ``no_repeat_ngram_size``); 0: they may.
    """
    rows = jnp.arange(scores.shape[1])[:, None]
    valid = jnp.arange(history.tokens.shape[1])[None] < history.lengths[:, None]

    def marked(tokens: Int[Array, "B m"], which: Bool[Array, "B m"]) -> Bool[Array, "N_V B"]:
        return jnp.zeros(scores.shape[::-1], bool).at[rows, tokens].max(which).T

    if penalty is not None:
        seen = marked(history.tokens, valid)
        scores = jnp.where(seen, jnp.where(scores < 0, scores * penalty, scores / penalty), scores)
    windows = history.tokens.shape[1] - ngram + 1  # of n tokens, the last of which is what may not come again
    if ngram and windows > 0:
        again = valid[:, ngram - 1 :]
        for k in range(ngram - 1):
            last = jnp.take_along_axis(history.tokens, history.lengths[:, None] - (ngram - 1) + k, axis=1)
            again &= history.tokens[:, k : k + windows] == last
        scores = jnp.where(marked(history.tokens[:, ngram - 1 :], again), -jnp.inf, scores)
    return scores
