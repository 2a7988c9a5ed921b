"""The n-gram model against Witten–Bell's formula, counted by brute force, and against nltk."""

import math
from collections import Counter

import numpy as np
import pytest

from tests.training_cases import token_store_of
from training.evaluation.baselines import compressed_bits_per_byte, ngram_score, probabilities

N_V = 8  # ordinary tokens 0 to 4, mask 5, bos 6, eos 7
SEQUENCES = [[6, 0, 1, 0, 1, 2, 7], [6, 0, 0, 3, 7], [6, 1, 7]]


def witten_bell(token, context):
    """p(token | context) by the formula, from lists of n-grams."""
    if not context:
        seen = Counter(t for s in SEQUENCES for t in s[1:])
        rest = 1 / N_V
    else:
        n = len(context)
        seen = Counter(s[i + n] for s in SEQUENCES for i in range(len(s) - n) if s[i : i + n] == context)
        rest = witten_bell(token, context[1:])
    kinds = len(seen)
    return rest if not seen else (seen[token] + kinds * rest) / (seen.total() + kinds)


def probability(token, context, order):
    """p(token | context) of the model, as the last token of a text that has no bos where the model needs none."""
    text = token_store_of([[*(context or [4]), token]], N_V)
    return probabilities(token_store_of(SEQUENCES, N_V), text, order=order)[-1]


@pytest.mark.parametrize("context", [[], [0], [6], [0, 1], [6, 0], [4], [1, 4], [4, 0]])
def test_every_probability_is_witten_bells(context):
    found = [probability(token, context, order=len(context) + 1) for token in range(N_V)]
    np.testing.assert_allclose(found, [witten_bell(token, context) for token in range(N_V)], rtol=1e-12)
    assert sum(found) == pytest.approx(1)
    assert min(found) > 0


# Perplexity and bits per byte by nltk 3.10: WittenBell, with unigrams interpolated with the uniform distribution.
NLTK = {
    1: (4.508724337185992, 2.947153910778577),
    2: (2.721808704596959, 1.9594603700261546),
    3: (1.289511004932818, 0.49757326437379396),
    4: (1.2625909706947311, 0.45628777659171066),
}


@pytest.mark.parametrize("order", NLTK)
def test_the_score_is_that_of_nltk(order):
    def sequence(s):
        return [11, *[(7 * i * i + 3 * i * s) % 9 for i in range(30 + s)], 12]

    train = token_store_of([sequence(s) for s in range(12)], 13)
    held_out = token_store_of([*map(sequence, (12, 13, 17)), [11, 9, 12]], 13, n_bytes=101)
    assert tuple(ngram_score(train, held_out, order=order).values()) == pytest.approx(NLTK[order], rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 5, 9])
def test_the_score_counts_every_token_but_bos_once(order):
    train = token_store_of(SEQUENCES, N_V)
    held_out = token_store_of([[6, 0, 1, 4, 7], [6, 7]], N_V, n_bytes=11)
    nats = []
    for s in ([6, 0, 1, 4, 7], [6, 7]):
        nats += [-math.log(witten_bell(s[t], s[max(0, t - order + 1) : t])) for t in range(1, len(s))]
    score = ngram_score(train, held_out, order=order)
    assert score["perplexity"] == pytest.approx(math.exp(sum(nats) / 5))
    assert score["bits_per_byte"] == pytest.approx(sum(nats) / math.log(2) / 11)


def test_what_cannot_be_is_said():
    train = token_store_of(SEQUENCES, N_V)
    with pytest.raises(ValueError, match="order: expected at least 1, got 0"):
        ngram_score(train, train, order=0)
    with pytest.raises(ValueError, match="held-out text: expected N_V = 8, as in the training text, got 9"):
        ngram_score(train, token_store_of(SEQUENCES, 9))


def test_no_bytes_are_said():
    with pytest.raises(ValueError, match="there are no bytes to compress; expected the held-out text"):
        compressed_bits_per_byte(b"")
