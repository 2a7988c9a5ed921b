"""Penalties for repetition: earlier tokens change the scores of the next one, as in the library transformers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from training.generation.sampling import SamplingArrays


class History(NamedTuple):
    """All tokens of B sequences so far."""

    tokens: Int[Array, "B T"]  # each sequence's prompt, then its generated tokens
    lengths: Int[Array, "B"]  # tokens of each sequence
    given: Int[Array, "B"]  # tokens of each prompt

    def with_token(self, y: Int[Array, "B"]) -> "History":
        """Return the history with one more token per sequence."""
        rows = jnp.arange(len(y))
        return History(self.tokens.at[rows, self.lengths].set(y), self.lengths + 1, self.given)


def penalized(scores: Float[Array, "N_V B"], history: History, sampling: SamplingArrays) -> Float[Array, "N_V B"]:
    """Return scores after the penalties of `Sampling` (Keskar et al. 2019; the library transformers; OpenAI)."""
    rows = jnp.arange(scores.shape[1])[:, None]

    def marked(which: Bool[Array, "B T"]) -> Bool[Array, "N_V B"]:
        return jnp.zeros(scores.shape[::-1], bool).at[rows, history.tokens].max(which).T

    by = sampling.repetition_penalty.astype(scores.dtype)[None]
    seen = marked(jnp.arange(history.tokens.shape[1])[None] < history.lengths[:, None])
    scores = jnp.where(seen, jnp.where(scores < 0, scores * by, scores / by), scores)
    t = jnp.arange(history.tokens.shape[1])[None]
    generated = (history.given[:, None] <= t) & (t < history.lengths[:, None])
    counts = jnp.zeros(scores.shape[::-1], scores.dtype).at[rows, history.tokens].add(generated.astype(scores.dtype)).T
    scores = scores - sampling.frequency_penalty.astype(scores.dtype)[None] * counts
    scores = scores - sampling.presence_penalty.astype(scores.dtype)[None] * (counts > 0)
    return jnp.where(marked(_completes_again(history, sampling.no_repeat_ngram_size)), -jnp.inf, scores)


def _completes_again(history: History, n: Int[Array, "B"]) -> Bool[Array, "B T"]:
    """Mark the tokens that end an n-gram whose first n − 1 tokens are also the last n − 1 of the sequence."""
    tokens, lengths = history.tokens, history.lengths[:, None]
    t = jnp.arange(tokens.shape[1])[None]

    def undecided(found):
        k, again = found
        return jnp.any(again & (k < n[:, None]))

    def compare(found):
        """Compare the token k places before each with the k-th last of its sequence, for k < n."""
        k, again = found
        last = jnp.take_along_axis(tokens, jnp.maximum(lengths - k, 0), axis=1)
        return k + 1, again & ((k >= n[:, None]) | (jnp.roll(tokens, k, axis=1) == last))

    fits = (t < lengths) & (t >= n[:, None] - 1) & (n[:, None] > 0)
    return jax.lax.while_loop(undecided, compare, (jnp.asarray(1, jnp.int32), fits))[1]
