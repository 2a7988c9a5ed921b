"""The linear map of many columns, and of a single one, whose rows are taken in groups on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.ops.linear import linear, product, tied_logits
from tests import cases


@pytest.mark.parametrize("implementation", ["paper", "auto"])
@pytest.mark.parametrize("rows", [(512,), (4, 3, 64), (1023,)], ids=str)
@pytest.mark.parametrize("columns", [(1,), (2, 3)], ids=str)
def test_every_column_is_mapped_alike(rows, columns, implementation):
    W, X, b = cases.normal(*rows, 256), cases.normal(256, *columns, seed=1), cases.normal(*rows, seed=2)
    Y = linear(W, X, b, implementation)
    expected = np.tensordot(np.asarray(W), np.asarray(X), 1) + np.asarray(b).reshape(*rows, *(1 for _ in columns))
    assert Y.shape == (*rows, *columns)
    np.testing.assert_allclose(Y, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("implementation", ["paper", "auto"])
def test_a_single_column_has_the_gradient_of_the_printed_line(implementation):
    W, x, b = cases.normal(512, 256), cases.normal(256, 1, seed=1), cases.normal(512, seed=2)
    dW, dx, db = jax.grad(lambda *a: jnp.sin(linear(*a, implementation)).sum(), (0, 1, 2))(W, x, b)
    dy = np.cos(np.asarray(W) @ np.asarray(x) + np.asarray(b)[:, None])
    np.testing.assert_allclose(dW, dy * np.asarray(x).T, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(dx, np.asarray(W).T @ dy, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(db, dy[:, 0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_product_is_accumulated_in_the_dtype_asked_for(columns):
    W, X = cases.normal(512, 256, dtype=jnp.bfloat16), cases.normal(256, columns, seed=1, dtype=jnp.bfloat16)
    Y = product(W, X, jnp.dtype("float32"))
    assert Y.dtype == jnp.float32
    np.testing.assert_allclose(Y, np.asarray(W, np.float64) @ np.asarray(X, np.float64), rtol=1e-4, atol=1e-4)


def test_groups_of_rows_are_for_processors_only():
    W, x = jax.ShapeDtypeStruct((512, 256), jnp.float32), jax.ShapeDtypeStruct((256, 1), jnp.float32)
    of_platform = {
        name: jax.jit(product).trace(W, x).lower(lowering_platforms=(name,)).as_text()
        for name in ("cpu", "cuda", "tpu")
    }
    assert "tensor<2x256x256xf32>" in of_platform["cpu"]
    assert "tensor<2x256x256xf32>" not in of_platform["cuda"] + of_platform["tpu"]


def test_the_gradients_of_a_single_column_without_an_axis_are_those_of_the_printed_line():
    W, x, b = cases.normal(3, 5), cases.normal(5, seed=1), cases.normal(3, seed=2)

    def gradients(implementation):
        return jax.grad(lambda *a: (linear(*a, implementation) ** 2).sum(), argnums=(0, 1, 2))(W, x, b)

    for actual, expected in zip(gradients("auto"), gradients("paper"), strict=True):
        cases.assert_close(actual, expected, 1e-13)


@pytest.mark.parametrize("columns", [(), (1,), (3, 2)])
def test_logits_of_a_tied_unembedding_are_those_of_the_transposed_embedding(columns):
    X, W_e, b_u = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate([(5, *columns), (5, 7), (7,)]))
    expected = np.einsum("dn,d...->n...", W_e, X)
    np.testing.assert_allclose(tied_logits(jnp.asarray(X), jnp.asarray(W_e)), expected, rtol=1e-12)
    found = tied_logits(jnp.asarray(X), jnp.asarray(W_e), jnp.asarray(b_u))
    np.testing.assert_allclose(found, expected + b_u.reshape(-1, *(1,) * len(columns)), rtol=1e-12)
    narrow = tied_logits(jnp.asarray(X, jnp.bfloat16), jnp.asarray(W_e, jnp.bfloat16))
    assert narrow.dtype == jnp.float32
    np.testing.assert_allclose(narrow, expected, rtol=0.05, atol=0.05)
