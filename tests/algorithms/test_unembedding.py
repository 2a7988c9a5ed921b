"""Algorithm 7 and equation (2) against the oracle, and the nonlinearities."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import unembedding
from algorithms.lines import Unembedding
from algorithms.ops.activation import softmax
from tests import cases
from training import oracle


def test_the_columns_are_unembedded_one_by_one_and_the_bias_is_added():
    X, W_u, b_u = cases.normal(5, 2, 3), cases.normal(7, 5, seed=1), cases.normal(7, seed=2)
    P = unembedding(X, W_u, b_u=b_u)
    for b, t in np.ndindex(2, 3):
        expected = oracle.softmax(np.asarray(W_u) @ np.asarray(X[:, b, t]) + np.asarray(b_u))
        np.testing.assert_allclose(P[:, b, t], expected, rtol=1e-12)


def test_a_tied_unembedding_may_scale_its_input():
    X, W_e = cases.normal(5, 3), cases.normal(5, 7, seed=1)
    theta = SimpleNamespace(W_e=W_e, W_u=None, b_u=None)
    cases.assert_close(Unembedding(tied=True, scaled=True).logits(X, theta), W_e.T @ X / np.sqrt(5))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_logits_do_not_overflow(dtype):
    W_u = jnp.array([[1e4], [-1e4], [1e4]], dtype)
    np.testing.assert_array_equal(unembedding(jnp.ones(1, dtype), W_u), [0.5, 0, 0.5])


def test_a_column_of_minus_infinity_is_0_and_sends_no_gradient():
    A = jnp.array([[0.0, -jnp.inf], [-jnp.inf, -jnp.inf]])
    np.testing.assert_array_equal(softmax(A), [[1, 0], [0, 0]])
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda A: (softmax(A) ** 2).sum()))(A), np.zeros((2, 2)))


def test_bfloat16_probabilities_are_formed_in_float32():
    e, W_u = (cases.normal(*shape, dtype=jnp.bfloat16) for shape in ((5,), (7, 5)))
    p = unembedding(e, W_u)
    expected = oracle.unembedding(np.asarray(e, np.float64), np.asarray(W_u, np.float64))
    assert p.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(p, np.float64), expected, rtol=1e-5)
