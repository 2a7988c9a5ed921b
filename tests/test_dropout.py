"""Dropout of activations: what it keeps, how much, and from which key."""

import jax
import numpy as np

from algorithms.dropout import dropout, kept_weights
from tests import cases

X = 1 + cases.normal(31, 3, 47) ** 2  # nowhere 0; three sequences side by side


def test_what_is_not_dropped_is_divided_by_what_is_kept():
    Y = dropout(X, 0.3, jax.random.split(jax.random.key(0), 3))
    kept = np.asarray(Y != 0)
    np.testing.assert_allclose(Y[kept], X[kept] / 0.7, rtol=1e-15)
    assert abs(kept.sum() - 0.7 * X.size) < 5 * np.sqrt(0.3 * 0.7 * X.size)


def test_every_sequence_is_drawn_from_its_own_key():
    keys = jax.random.split(jax.random.key(0), 3)
    together = dropout(X, 0.3, keys)
    for b in range(3):
        np.testing.assert_array_equal(together[:, b], dropout(X[:, b], 0.3, keys[b]))
    assert ((together[:, 0] != 0) != (together[:, 1] != 0)).any()


def test_without_a_key_or_a_rate_everything_is_kept():
    assert dropout(X, 0.3, None) is X
    assert dropout(X, 0.0, jax.random.key(0)) is X


def test_a_block_of_attention_weights_is_drawn_as_in_the_whole():
    key = jax.random.key(0)
    whole = kept_weights(key, 0.3, (0, 0), (3, 2))
    np.testing.assert_array_equal(kept_weights(key, 0.3, (1, 1), (2, 1)), whole[64:, 64:])
    assert abs(whole.mean() - 0.7) < 5 * np.sqrt(0.3 * 0.7 / whole.size)
