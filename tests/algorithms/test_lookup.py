"""The gradient of a lookup: each column gets the sum of all places where its token stands, by either way to form it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.ops import lookup as of_columns
from algorithms.ops.lookup import columns
from tests import cases

W = cases.normal(5, 11)
TOKENS = jnp.array([[3, 3, 10], [0, 3, 0]])
WEIGHTS = cases.normal(5, 2, 3, seed=1)


def gradient(v, implementation):
    """By W, of a weighting of the columns."""
    return np.asarray(jax.jit(jax.grad(lambda W: (WEIGHTS * columns(W, implementation)[:, v]).sum()))(W))


@pytest.fixture(params=["by a product", "by a scatter"])
def way(request, monkeypatch):
    if request.param == "by a scatter":
        monkeypatch.setattr(of_columns, "ONE_HOT_LIMIT", 4)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("implementation", ["paper", "auto"])
def test_a_token_that_stands_several_times_gets_the_sum(implementation):
    expected = np.zeros((5, 11))
    for place in np.ndindex(2, 3):
        expected[:, TOKENS[place]] += np.asarray(WEIGHTS)[:, *place]
    np.testing.assert_allclose(gradient(TOKENS, implementation), expected, rtol=0, atol=1e-15)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("implementation", ["paper", "auto"])
@pytest.mark.parametrize("outside", [-1, 11])
def test_a_token_outside_of_the_matrix_makes_the_gradient_nan(outside, implementation):
    """And never another column's, which an index that wraps or is clipped would change."""
    inside = gradient(TOKENS, implementation)
    spoilt = gradient(TOKENS.at[1, 1].set(outside), implementation)
    assert np.isnan(spoilt).any()
    finite = np.isfinite(spoilt).all(axis=0)
    finite[3] = False  # which is told one time less
    np.testing.assert_allclose(spoilt[:, finite], inside[:, finite], rtol=0, atol=1e-15)
