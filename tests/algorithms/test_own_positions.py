"""Custom positions, in one file: values, gradients and cached tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.model.mixer import MixerMetadata
from tests.cases import assert_close, assert_trees_close, by, random_theta
from tests.own_lines.slopes import SLOPES
from training.generation import generate
from training.tasks.own_lines import modules_of, variant_named

pytestmark = pytest.mark.sampled(1, tests=3)

CONFIG = alg.DTransformerConfig(N_V=13, l_max=23, L=2, H=3, d_e=6, d_mlp=5, variant=SLOPES)
THETA = random_theta(CONFIG)
X = np.random.default_rng(0).integers(0, 10, (2, 7))


def attention_as_it_says(W, X):
    """Softmax attention of one sequence, with the slopes, in NumPy."""
    heads, l = W.heads, X.shape[1]
    t = np.arange(l)
    Y = []
    for h in range(3):
        Q, K, V = (np.asarray(part[h]) @ X for part in (heads.W_q, heads.W_k, heads.W_v))
        S = K.T @ Q / np.sqrt(len(Q)) - np.exp(W.of_positions.a[h]) * np.abs(t[:, None] - t)
        A = np.exp(np.where(t[:, None] <= t, S, -np.inf))
        Y.append(V @ (A / A.sum(axis=0)))
    return np.asarray(W.W_o) @ np.concatenate(Y)


def test_values_are_those_of_the_formula():
    W = jax.tree.map(lambda a: np.asarray(a)[1], THETA.layers.attention)
    assert W.of_positions.a.shape == (3,)
    Z = np.random.default_rng(1).normal(size=(6, 7))

    @functools.partial(jax.jit, static_argnums=0)
    def whole(how, Z, W):
        return by(how, SLOPES.attention.whole, Z, W, alg.UNIDIRECTIONAL, MixerMetadata(np.arange(7)))[0]

    for how in ("paper", "dense", "blockwise", "strips"):
        assert_close(whole(how, Z, W), attention_as_it_says(W, Z))


@pytest.mark.end_to_end
def test_gradients_are_those_of_the_lines_as_printed():
    def gradient(how):
        return jax.jit(jax.grad(lambda theta: alg.d_token_losses(X, theta, implementation=how).sum()))(THETA)

    expected = gradient("paper")
    assert jnp.abs(expected.layers.attention.of_positions.a).min() > 1e-6
    assert_trees_close(gradient("blockwise"), expected)


@pytest.mark.end_to_end
def test_cached_tokens_are_algorithm_14s():
    key = jax.random.key(2)
    tokens = generate(THETA, X, lengths=np.array([7, 4]), config=CONFIG, l_gen=9, tau=0.9, key=key)
    for r, n in enumerate((7, 4)):
        alone = alg.d_inference(jnp.asarray(X[r, :n]), THETA, l_gen=9, tau=0.9, key=jax.random.fold_in(key, r))
        np.testing.assert_array_equal(tokens[r], alone)


def test_the_record_is_saved_by_the_name_of_its_class():
    assert alg.Variant.from_json(SLOPES.to_json()) == SLOPES


@pytest.mark.thorough
def test_it_is_found_by_name():
    path = "tests.own_lines.slopes:SLOPES"
    assert variant_named(path, modules_of(path)) == SLOPES
