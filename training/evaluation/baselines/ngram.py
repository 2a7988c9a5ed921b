"""An interpolated n-gram model, to compare a language model's perplexity with; needs nltk (extra "compare").

Witten–Bell interpolation of the orders n, …, 1 and the uniform distribution, so that no token has probability zero:
with h the last n − 1 tokens, c(h) the number of tokens seen after h and T(h) the number of distinct ones,

    p(w | h) = (c(h w) + T(h) p(w | h')) / (c(h) + T(h)),        h' = h without its first token.

Counting and scoring are plain Python: about 25 and 50 microseconds per token.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from nltk.lm.api import LanguageModel
from nltk.lm.models import InterpolatedLanguageModel
from nltk.lm.smoothing import WittenBell
from nltk.util import everygrams

from training.data.store import TokenStore


class NgramScore(NamedTuple):
    """How well an n-gram model predicts held-out text."""

    perplexity: float  # per token, without bos
    bits_per_byte: float  # per UTF-8 byte of the text


class _WittenBellToUniform(WittenBell):
    """nltk's Witten–Bell smoothing, with unigrams interpolated with the uniform distribution."""

    def __init__(self, vocabulary: Any, counter: Any, *, N_V: int) -> None:
        super().__init__(vocabulary, counter)
        self._N_V = N_V

    def unigram_score(self, word: int) -> float:
        """Return p(word) without a context."""
        seen = self.counts.unigrams
        return (seen[word] + seen.B() / self._N_V) / (seen.N() + seen.B())


def ngram_model(train: TokenStore, *, order: int = 3) -> LanguageModel:
    """Count the n-grams of framed sequences; the model's `unmasked_score(token, context)` is the probability of a token
    after a tuple of tokens. Raises ValueError if the order is less than 1.
    """
    if order < 1:
        raise ValueError(f"order: expected at least 1, got {order}")
    model = InterpolatedLanguageModel(_WittenBellToUniform, order, params={"N_V": train.N_V})
    bos = (train.special_token("bos"),)
    for i in range(len(train)):
        grams = everygrams(train[i].tolist(), max_len=order)
        model.counts.update([[gram for gram in grams if gram != bos]])  # bos is never predicted
    return model


def ngram_score(train: TokenStore, held_out: TokenStore, *, order: int = 3) -> NgramScore:
    """Train an n-gram model and score every token of held-out text except bos. Raises ValueError if the order is less
    than 1, or the vocabulary sizes differ.
    """
    if train.N_V != held_out.N_V:
        raise ValueError(f"held-out text: expected N_V = {train.N_V}, as in the training text, got {held_out.N_V}")
    model = ngram_model(train, order=order)
    nats = [
        -math.log(model.unmasked_score(sequence[t], tuple(sequence[max(0, t - order + 1) : t])))
        for sequence in (held_out[i].tolist() for i in range(len(held_out)))
        for t in range(1, len(sequence))
    ]
    return NgramScore(math.exp(np.mean(nats)), sum(nats) / math.log(2) / held_out.n_bytes)
