"""Matrices rounded to int8: how far off their entries are, and that products are those of the rounded matrices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.ops.linear import linear, logits
from tests import cases
from training.benchmarks.timing import temporary_bytes
from training.generation.quantized import SMALL, QuantizedMatrix

of_matrix = jax.jit(QuantizedMatrix.of)
SHAPES = [((5,), ()), ((7,), (1,)), ((3, 2), (2, 3)), ((97,), (16,)), ((131,), (1,))]


def as_matrix(W: QuantizedMatrix) -> np.ndarray:
    """The matrix that the integers and the scales stand for."""
    flat = np.asarray(W.entries, np.float64).T * np.asarray(W.scales, np.float64).T
    return flat.reshape(*W.rows, -1)


def unrounded(weights):
    """Weights with the matrices that integers and scales stand for."""

    def of(W):
        return jnp.asarray(as_matrix(W), jnp.float32) if isinstance(W, QuantizedMatrix) else W

    return jax.tree.map(of, weights, is_leaf=lambda W: isinstance(W, QuantizedMatrix))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_entry_is_off_by_half_a_scale_at_most_and_the_largest_by_nothing(dtype):
    W = np.array(cases.normal(3, 11, 13))
    W[1, 2] = 0
    W = jnp.asarray(W, dtype)
    rounded, exact = of_matrix(W), np.asarray(W, np.float64)
    largest = np.abs(exact).max(-1, keepdims=True)
    assert rounded.entries.dtype == jnp.int8
    assert (np.abs(as_matrix(rounded) - exact) <= largest / 127 / 2 * (1 + 1e-5)).all()
    at = np.abs(exact) == largest
    np.testing.assert_allclose(as_matrix(rounded)[at], exact[at], rtol=1e-6)


@pytest.mark.parametrize(("rows", "columns"), SHAPES, ids=str)
def test_a_product_is_that_of_the_rounded_matrix_but_for_15_bits_of_the_column(rows, columns):
    W, X = cases.normal(*rows, 19, dtype=jnp.float32), np.array(cases.normal(19, *columns, seed=1, dtype=jnp.float32))
    X[3] *= 1000  # beside which the others would vanish in 8 bits
    rounded, b = of_matrix(W), cases.normal(*rows, seed=2, dtype=jnp.float32)
    Y = jax.jit(lambda X: cases.by("paper", linear, rounded, X, b))(X)
    exact = np.asarray(X, np.float64)
    expected = np.tensordot(as_matrix(rounded), exact, 1) + np.asarray(b).reshape(*rows, *(1 for _ in columns))
    off_by = np.abs(exact).max(0) / 127 / 254 / 2  # each entry of a column
    bound = np.multiply.outer(np.abs(as_matrix(rounded)).sum(-1), off_by) * (1 + 1e-3) + 1e-4
    assert (Y.shape, Y.dtype) == (expected.shape, jnp.float32)
    assert (np.abs(Y - expected) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [(), (1,)], ids=str)
def test_a_column_times_a_large_matrix_is_not_rounded(columns, dtype):
    W, x = cases.normal(41, 51, 48, dtype=jnp.float32).astype(dtype), cases.normal(48, *columns, seed=1).astype(dtype)
    rounded = of_matrix(W)
    assert rounded.entries.size > SMALL
    Y = jax.jit(lambda W, x: W.times(x, jnp.float32))(rounded, x)
    expected = np.tensordot(as_matrix(rounded), np.asarray(x, np.float64), 1)
    assert Y.dtype == jnp.float32
    np.testing.assert_allclose(Y, expected, rtol=1e-5, atol=2e-5)


def test_a_loop_of_steps_reads_the_bytes_of_a_large_matrix_and_does_not_widen_it():
    W: Any = of_matrix(cases.normal(512, 512, dtype=jnp.float32))
    x: Any = jnp.ones((512, 1))
    steps = jax.jit(lambda W, x: jax.lax.fori_loop(0, 3, lambda _, x: W.times(x), x))
    assert temporary_bytes(steps, W, x) < W.entries.nbytes


def test_a_column_does_not_depend_on_those_beside_it():
    W, X = of_matrix(cases.normal(31, 19, dtype=jnp.float32)), cases.normal(19, 5, dtype=jnp.float32)
    times = jax.jit(W.times)
    X, together = np.asarray(X), np.asarray(times(X))
    for i in range(5):
        np.testing.assert_allclose(together[:, i : i + 1], times(X[:, i : i + 1]), rtol=1e-6)


def test_nothing_times_something_is_nothing_and_logits_of_a_narrow_model_are_wide():
    W = of_matrix(jnp.zeros((3, 4)))
    times = jax.jit(lambda W, X: W.times(X))
    np.testing.assert_array_equal(times(W, jnp.ones((4, 2))), np.zeros((3, 2)))
    np.testing.assert_array_equal(times(of_matrix(jnp.ones((3, 4))), jnp.zeros((4, 1))), np.zeros((3, 1)))
    W, X = cases.normal(7, 5, dtype=jnp.bfloat16), cases.normal(5, 2, seed=1, dtype=jnp.bfloat16)
    Y = jax.jit(logits)(X, of_matrix(W))
    assert Y.dtype == jnp.float32
    np.testing.assert_allclose(Y, np.asarray(W, np.float64) @ np.asarray(X, np.float64), atol=0.05)
