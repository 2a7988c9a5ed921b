"""Arguments of other kinds: numbers of NumPy, booleans as weights, tensors of other libraries."""

import json

import jax
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import RMSNorm
from algorithms.machinery.record import Record
from tests import cases

pytestmark = pytest.mark.usefixtures("as_for_users")

SIZES = {"l_max": 8, "L": 2, "H": 2, "d_e": 16, "d_mlp": 32}
THETA = cases.random_theta(alg.DTransformerConfig(L=1, **cases.TINY))
x = cases.random_tokens(5, n=7)


def test_sizes_of_numpy():
    config = alg.DTransformerConfig(N_V=np.int64(23), tied=np.True_, **SIZES | {"L": np.uint8(2)})
    assert config == alg.DTransformerConfig(N_V=23, tied=True, **SIZES)
    assert type(config.N_V) is int
    assert type(config.L) is int


def test_numbers_of_numpy_in_records():
    line = RMSNorm(epsilon=np.float32(1e-6))
    assert line == RMSNorm(epsilon=float(np.float32(1e-6)))
    assert Record.from_json(json.loads(json.dumps(alg.PAPER.but(norm=line).to_json()))).norm == line


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_static_numbers_of_numpy(kind):
    e, epsilon = cases.normal(3, 4), kind(0.5)
    np.testing.assert_array_equal(
        alg.layer_norm(e, e[:, 0], e[:, 1], epsilon=epsilon), alg.layer_norm(e, e[:, 0], e[:, 1], epsilon=0.5)
    )
    key = jax.random.key(0)
    dropped = alg.d_transformer(x, THETA, dropout=epsilon, key=key)
    np.testing.assert_array_equal(dropped, alg.d_transformer(x, THETA, dropout=0.5, key=key))
    assert alg.d_inference(x[:2], THETA, l_gen=np.int16(2), tau=kind(0), key=key).shape == (2,)


def test_widths_and_lengths_of_numpy():
    assert alg.banded(np.int32(2)) == alg.banded(2)
    np.testing.assert_array_equal(alg.padding(np.uint8(2)).dense(3, 3), alg.padding(2).dense(3, 3))


def test_boolean_weights_say_which_tokens_count():
    X, W_u, counts = cases.normal(3, 5), cases.normal(7, 3, seed=1), np.array([True, False, True, True, False])
    found = jax.value_and_grad(alg.log_loss)(X, W_u, x, weights=counts)
    expected = jax.value_and_grad(alg.log_loss)(X, W_u, x, weights=counts.astype(float))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
