"""Algorithms 1, 2 and 7 and equation (2) against the oracle, the gradient of a lookup, both published forms of the
sinusoids, and the frequencies of rotary positions for longer texts.
"""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms import positional_embedding, sinusoidal_positional_embedding, token_embedding, unembedding
from algorithms.alg01_embedding import sinusoid
from algorithms.lines import Embedding, Linear, Llama3, Rotary, Unembedding, Yarn
from algorithms.ops import linear
from algorithms.ops.activation import softmax
from tests import cases
from training import oracle
from training.oracle.positions import rotary_frequencies

LOOKUPS = [(token_embedding, oracle.token_embedding), (positional_embedding, oracle.positional_embedding)]


@pytest.mark.parametrize(("function", "expected"), LOOKUPS)
def test_every_column_is_the_oracles(function, expected):
    W = cases.normal(5, 7)
    for v in range(7):
        np.testing.assert_array_equal(function(v, W), expected(v, np.asarray(W)))
    np.testing.assert_array_equal(function(jnp.arange(7), W), W)
    np.testing.assert_array_equal(jax.vmap(function, (0, None), 1)(jnp.arange(7), W), W)


@pytest.mark.parametrize("l_max", [1, 2, 13])
def test_the_papers_sinusoids_are_the_oracles(l_max):
    W_p = sinusoidal_positional_embedding(10, l_max, dtype=jnp.dtype("float64"))
    cases.assert_close(W_p, oracle.sinusoidal_positional_embedding(10, l_max))


def test_the_sinusoids_of_published_models_by_their_formulas():
    """Vaswani's from position 0, sines and cosines by turns; those of others in halves."""
    angle = np.arange(11) / 10000 ** (2 * np.arange(3)[:, None] / 6)
    W_p = sinusoidal_positional_embedding(6, 11, base=10000, dtype=jnp.dtype("float64"))
    np.testing.assert_allclose(W_p, np.stack([np.sin(angle), np.cos(angle)], axis=1).reshape(6, 11), atol=1e-15)
    found = sinusoid(np.arange(11), 6, base=10000, form="sinusoidal_halves")
    assert isinstance(found, np.ndarray)  # computed in float64, whatever JAX has
    np.testing.assert_allclose(found, np.concatenate([np.sin(angle), np.cos(angle)]), atol=1e-15)
    line, theta = Embedding(positions="sinusoidal_halves", first_position=2), SimpleNamespace(W_e=cases.normal(6, 7))
    cases.assert_close(line.of_positions(np.arange(9), theta), found[:, 2:])


def test_a_table_with_columns_before_the_first_position_has_as_many_positions_as_were_asked_for():
    config = alg.EDTransformerConfig(N_V=7, l_max=5, L_enc=1, L_dec=1, H=1, d_e=2, d_mlp=3, variant=alg.BART)
    theta = alg.init_ed_transformer(jax.random.key(0), config)
    assert alg.BART.embedding.limit(theta) == 5


def test_far_positions_are_exact_in_float32():
    """The angle is formed in float64: in float32 it would be off by more than 1e-3 here."""
    W_p = sinusoidal_positional_embedding(2, 100_001, base=10000, dtype=jnp.dtype("float32"))
    assert W_p.dtype == jnp.float32
    assert W_p[0, 100_000] == pytest.approx(math.sin(100_000), abs=1e-7)


YARN = Yarn(factor=4.0, l_original=40, slow=0.5, fast=3.0)
SCALINGS = [Linear(factor=3.0), Llama3(factor=8.0, l_original=40), YARN, YARN.but(truncate=False, attention_factor=1.3)]


@pytest.mark.parametrize("scaling", [*SCALINGS, YARN.but(factor=0.7, slow=5e-4, fast=30.0)], ids=str)
def test_scaled_frequencies_are_the_oracles(scaling):
    expected, factor = rotary_frequencies(16, 100.0, scaling)
    found, of_ours = scaling(100.0 ** (-np.arange(0, 16, 2) / 16), 100.0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert of_ours == pytest.approx(factor, rel=1e-12)
    assert YARN.but(scores=0.7).of_scores == pytest.approx((1 + 0.07 * math.log(4)) ** 2, rel=1e-12)


def test_rotary_positions_of_one_sequence_serve_for_a_batch():
    Q, t = cases.normal(2, 6, 3, 5), jnp.arange(5)
    each = Rotary()(Q, jnp.broadcast_to(t, (3, 5)))
    np.testing.assert_array_equal(Rotary()(Q, t), each)


W = cases.normal(5, 11)
TOKENS = cases.array([[3, 3, 10], [0, 3, 0]])
WEIGHTS = cases.normal(5, 2, 3, seed=1)


def gradient(v, implementation):
    """By W, of a weighting of the columns: each gets the sum of all places where its token stands."""
    return np.asarray(
        jax.jit(jax.grad(lambda W: (WEIGHTS * cases.by(implementation, lambda: linear.columns(W)[:, v])).sum()))(W)
    )


@pytest.fixture(params=["by a product", "by a scatter"])
def way(request, monkeypatch):
    if request.param == "by a scatter":
        monkeypatch.setattr(linear, "ONE_HOT_LIMIT", 4)


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
