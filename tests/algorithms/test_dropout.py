"""Dropout of activations: what it keeps, how much, and from which key."""

import functools

import jax
import numpy as np
import pytest

from algorithms.machinery.options import using
from algorithms.ops.dropout import dropout, keep_mask, seed_of
from tests import cases


@functools.partial(jax.jit, static_argnums=1)
def drop(X, rate, key):
    with using(dropout=rate, key=key):
        return dropout(X)


mask_of = jax.jit(keep_mask, static_argnums=1)
X = cases.array(1 + np.asarray(cases.normal(31, 3, 47)) ** 2)  # nowhere 0; three sequences side by side


def test_what_is_not_dropped_is_divided_by_what_is_kept():
    Y = np.asarray(drop(X, 0.3, jax.random.split(jax.random.key(0), 3)))
    kept = Y != 0
    np.testing.assert_allclose(Y[kept], np.asarray(X)[kept] / 0.7, rtol=1e-15)
    assert abs(kept.sum() - 0.7 * X.size) < 5 * np.sqrt(0.3 * 0.7 * X.size)


def test_every_sequence_is_drawn_from_its_own_key():
    keys = jax.random.split(jax.random.key(0), 3)
    together = np.asarray(drop(X, 0.3, keys))
    for b in range(3):
        np.testing.assert_array_equal(together[:, b], drop(np.asarray(X)[:, b], 0.3, keys[b]))
    assert ((together[:, 0] != 0) != (together[:, 1] != 0)).any()


def test_without_a_key_or_a_rate_everything_is_kept():
    for rate, key in ((0.3, None), (0.0, jax.random.key(0))):
        with using(dropout=rate, key=key):
            assert dropout(X) is X


def test_a_block_of_attention_weights_is_drawn_as_in_the_whole():
    seed = seed_of(jax.random.key(0))
    whole = np.asarray(mask_of(seed, 0.3, np.arange(150), np.arange(90)))
    np.testing.assert_array_equal(mask_of(seed, 0.3, np.arange(41, 150), np.arange(7, 80)), whole[41:, 7:80])


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("number", range(3))
def test_what_is_kept_is_random(rate, number):
    n = 512
    kept_here = np.asarray(mask_of(seed_of(jax.random.key(number)), rate, np.arange(n), np.arange(n)), float)
    centered = (kept_here - (1 - rate)) / np.sqrt(rate * (1 - rate))
    limit = 5 / n  # five standard deviations of the mean of n² independent entries
    assert abs(centered.mean()) < limit
    assert np.abs(centered.mean(axis=0)).max() < 5 / np.sqrt(n)
    assert np.abs(centered.mean(axis=1)).max() < 5 / np.sqrt(n)
    for down, right in ((0, 1), (1, 0), (1, 1), (2, 0), (0, 2), (0, 64), (64, 0), (32, 256)):
        assert abs((centered * np.roll(centered, (down, right), (0, 1))).mean()) < limit
    assert abs((centered * centered.T).mean()) < 2 * limit
    spectrum = np.abs(np.fft.fft2(centered)) ** 2 / n**2  # of white noise: exponentially distributed, mean 1
    assert spectrum.max() < 25


def test_the_rate_is_exact_to_32_bits():
    words = mask_of(seed_of(jax.random.key(1)), 2.0**-12, np.arange(2048), np.arange(2048))
    dropped = words.size - int(words.sum())
    assert abs(dropped - 1024) < 5 * np.sqrt(1024)


def test_a_rate_of_almost_1_drops_everything():
    assert not np.asarray(mask_of(seed_of(jax.random.key(1)), 1 - 2.0**-40, np.arange(64), np.arange(64))).any()
