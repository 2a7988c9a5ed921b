"""Algorithm 6 and RMSnorm against the oracle."""

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import layer_norm, rms_norm
from tests import cases
from training import oracle

GAMMA, BETA = cases.normal(7, seed=1), cases.normal(7, seed=2)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_layer_norm_is_the_oracles(scale):
    e = 3 + scale * cases.normal(7)
    expected = oracle.layer_norm(*map(np.asarray, (e, GAMMA, BETA)))
    cases.assert_close(layer_norm(e, GAMMA, BETA), expected)


def test_rms_norm_is_the_oracles():
    e = 3 + cases.normal(7)
    cases.assert_close(rms_norm(e, GAMMA), oracle.rms_norm(np.asarray(e), np.asarray(GAMMA)))


def test_one_column_on_a_gpu_is_the_oracles(monkeypatch):
    """As printed, in columns of a length that no other test has, since the traced functions are cached."""
    monkeypatch.setattr("algorithms.ops.normalization.platform_of", lambda _: "gpu")
    e, gamma, beta = 3 + cases.normal(13), cases.normal(13, seed=1), cases.normal(13, seed=2)
    expected = oracle.layer_norm(*map(np.asarray, (e, gamma, beta)))
    cases.assert_close(layer_norm(e[:, None], gamma, beta, implementation="paper")[:, 0], expected)
    expected = oracle.rms_norm(np.asarray(e), np.asarray(gamma))
    cases.assert_close(rms_norm(e[:, None], gamma, implementation="paper")[:, 0], expected)


def test_epsilon_is_added_to_the_variance():
    e = np.array([1.0, 3.0])  # mean 2, variance 1
    one, zero = jnp.ones(2), jnp.zeros(2)
    cases.assert_close(layer_norm(jnp.asarray(e), one, zero, epsilon=3.0), [-0.5, 0.5])
    cases.assert_close(rms_norm(jnp.asarray(e), one, epsilon=4.0), e / 3)  # mean square 5
    cases.assert_close(layer_norm(jnp.full(2, 5.0), one, zero, epsilon=1e-5), [0, 0])


def test_equal_activations_are_0_over_0():
    assert np.isnan(layer_norm(jnp.full(3, 2.0), jnp.ones(3), jnp.zeros(3))).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_small_dtypes_sum_in_float32(dtype):
    e, gamma, beta = (a.astype(dtype) for a in (100 + cases.normal(7), GAMMA, BETA))
    e_hat = layer_norm(e, gamma, beta)
    assert e_hat.dtype == dtype
    expected = oracle.layer_norm(*(np.asarray(a, np.float64) for a in (e, gamma, beta)))
    cases.assert_close(e_hat, expected, {"float32": 1e-4, "bfloat16": 1e-2}[dtype])
