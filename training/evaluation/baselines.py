"""Baselines of a language model: general-purpose compressors, and an interpolated n-gram model.

The n-gram model interpolates the orders n, …, 1 and the uniform distribution as Witten and Bell do, so that no token
has probability zero: with h the last n − 1 tokens, c(h) the number of tokens seen after h and T(h) the number of
distinct ones,

    p(w | h) = (c(h w) + T(h) p(w | h')) / (c(h) + T(h)),        h' = h without its first token.
"""

import bz2
import gzip
import lzma
import math

import numpy as np

from training.data.token_store import TokenStore

UNSEEN = -1  # number of an n-gram that the training text does not have


def _placed(store: TokenStore) -> tuple[np.ndarray, np.ndarray]:
    """Return all tokens, and the position of each in its sequence."""
    tokens = np.asarray(store.tokens[store.offsets[0] : store.offsets[-1]], np.int64)
    return tokens, np.arange(len(tokens)) - np.repeat(store.offsets[:-1] - store.offsets[0], store.lengths)


def _numbered(seen: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the index of each key among the sorted distinct ones that were seen, or `UNSEEN`."""
    seen = np.append(seen, np.iinfo(np.int64).max)  # so that every key has a place
    found = np.searchsorted(seen, keys)
    return np.where(seen[found] == keys, found, UNSEEN)


def probabilities(train: TokenStore, held_out: TokenStore, *, order: int = 3) -> np.ndarray:
    """Return the probability of every token of held-out text except bos, by the n-grams of the training text. An n-gram
    is the number of its first n − 1 tokens times N_V, plus its last; the distinct ones, numbered by rank, are the
    contexts of the next order. Raises ValueError for an order below 1, or different vocabularies.
    """
    if order < 1:
        raise ValueError(f"order: expected at least 1, got {order}")
    if train.N_V != held_out.N_V:
        raise ValueError(f"held-out text: expected N_V = {train.N_V}, as in the training text, got {held_out.N_V}")
    N_V, (w, t), (test_w, test_t) = train.N_V, _placed(train), _placed(held_out)
    h, test_h = np.zeros_like(w), np.zeros_like(test_w)  # numbers of contexts
    p = np.full(len(test_w), 1 / N_V)
    for n in range(1, order + 1):
        grams, test_grams = h * N_V + w, test_h * N_V + test_w
        seen, counts = np.unique(grams[t >= max(n - 1, 1)], return_counts=True)  # bos is never predicted
        c_hw = np.append(counts, 0)[_numbered(seen, test_grams)]
        n_contexts = max(0, h.max(), test_h.max()) + 1
        c = np.bincount(seen // N_V, counts, n_contexts)[test_h]
        T = np.bincount(seen // N_V, minlength=n_contexts)[test_h]
        known = (test_t >= n - 1) & (test_h != UNSEEN) & (c > 0)
        p = np.where(known, (c_hw + T * p) / np.maximum(c + T, 1), p)
        own, test_own = (w, test_w) if n == 1 else (_numbered(seen, grams), _numbered(seen, test_grams))
        h, test_h = np.roll(own, 1), np.roll(test_own, 1)
    return p[test_t > 0]


def ngram_score(train: TokenStore, held_out: TokenStore, *, order: int = 3) -> dict[str, float]:
    """Return an n-gram model's perplexity per token of held-out text except bos, and its bits per UTF-8 byte."""
    nats = -np.log(probabilities(train, held_out, order=order))
    return {"perplexity": math.exp(nats.mean()), "bits_per_byte": nats.sum() / math.log(2) / held_out.n_bytes}


def compressed_bits_per_byte(data: bytes) -> dict[str, float]:
    """Return the bits per byte of `data`, not empty, that gzip -9, bzip2 -9 and xz -9e need, by command."""
    if not data:
        raise ValueError("there are no bytes to compress; expected the held-out text")
    sizes = {
        "gzip -9": len(gzip.compress(data, 9, mtime=0)),
        "bzip2 -9": len(bz2.compress(data, 9)),
        "xz -9e": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * size / len(data) for name, size in sizes.items()}
