"""The losses of (x, θ) are those of the probabilities, also if the unembedding scales, caps or has a bias."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import (
    BERT,
    GEMMA2,
    PAPER,
    T5,
    VARIANTS,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    d_token_losses,
    d_training,
    e_token_losses,
    e_transformer,
    ed_token_losses,
    ed_transformer,
)
from tests import cases

SIZES = {"N_V": 11, "l_max": 7, "H": 2, "d_e": 8, "d_mlp": 5}
X = jnp.array([[1, 4, 2, 7, 10], [5, 0, 3, 6, 9]])
Z = jnp.array([[3, 1, 2, 0], [2, 2, 7, 0]])
LENGTHS, Z_LENGTHS = jnp.array([5, 3]), jnp.array([3, 4])


def picked(P, targets):
    """−log P[targets[b, t], b, t] as NumPy computes it."""
    P = np.asarray(P)
    return np.array([[-np.log(P[v, b, t]) for t, v in enumerate(row)] for b, row in enumerate(np.asarray(targets))])


def following(losses):
    """The losses of next tokens, 0 where there is none."""
    return np.array(
        [[l if t + 1 < n else 0 for t, l in enumerate(row)] for row, n in zip(losses, LENGTHS, strict=True)]
    )


@pytest.mark.parametrize("name", ["PAPER", "GEMMA2", "OPT", "GOPHER"])
@pytest.mark.parametrize("implementation", ["paper", "auto"])
def test_a_decoders_losses_are_those_of_its_probabilities(name, implementation):
    theta = cases.random_theta(DTransformerConfig(**SIZES, L=2, variant=VARIANTS[name]))
    found = d_token_losses(X, theta, lengths=LENGTHS, implementation=implementation)
    P = algorithms.d_transformer(X, theta, length=LENGTHS)
    np.testing.assert_allclose(found, following(picked(P, jnp.roll(X, -1, 1))), rtol=1e-9)
    one = d_token_losses(X[1, :3], theta, implementation=implementation)
    np.testing.assert_allclose(found[1, :3], one, rtol=1e-9)


@pytest.mark.parametrize("variant", [PAPER, T5, VARIANTS["BART"]], ids=["PAPER", "T5", "BART"])
def test_an_encoder_decoders_losses_are_those_of_its_probabilities(variant):
    theta = cases.random_theta(EDTransformerConfig(**SIZES, L_enc=1, L_dec=2, variant=variant))
    found = ed_token_losses(Z, X, theta, z_lengths=Z_LENGTHS, x_lengths=LENGTHS)
    P = ed_transformer(Z, X, theta, z_length=Z_LENGTHS)
    np.testing.assert_allclose(found, following(picked(P, jnp.roll(X, -1, 1))), rtol=1e-9)


@pytest.mark.parametrize("variant", [PAPER, BERT], ids=["PAPER", "BERT"])
def test_an_encoders_losses_are_those_of_the_masked_tokens(variant):
    theta = cases.random_theta(ETransformerConfig(**SIZES, L=2, variant=variant))
    x_tilde = X.at[0, 1].set(8).at[0, 3].set(8).at[1, 2].set(8).at[1, 4].set(8)  # 8 is mask_token; [1, 4] is padding
    found = e_token_losses(X, theta, x_tilde=x_tilde, lengths=LENGTHS)
    expected = picked(e_transformer(x_tilde, theta, length=LENGTHS), X)
    where = np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]])
    np.testing.assert_allclose(found, np.where(where, expected, 0), rtol=1e-9)


def test_the_last_token_of_a_document_has_no_loss():
    theta = cases.random_theta(DTransformerConfig(**SIZES, L=2, variant=GEMMA2))
    segments, positions = jnp.array([0, 0, 0, 1, 1]), jnp.array([0, 1, 2, 0, 1])
    found = d_token_losses(X[0], theta, segments=segments, positions=positions)
    expected = [*d_token_losses(X[0, :3], theta), *d_token_losses(X[0, 3:], theta)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[2] == found[4] == 0


def test_one_step_of_algorithm_13_descends_their_sum():
    theta, eta = cases.random_theta(DTransformerConfig(**SIZES, L=2, variant=GEMMA2)), 0.1
    gradient = jax.grad(lambda theta: d_token_losses(X[0], theta).sum())(theta)
    by_hand = jax.tree.map(lambda a, g: a - eta * g, theta, gradient)
    cases.assert_trees_close(d_training(X[:1], theta, N_epochs=1, eta=eta), by_hand, 1e-9)


def test_padding_and_invalid_targets_send_no_gradient():
    theta = cases.random_theta(DTransformerConfig(**SIZES, L=1))
    padded = X.at[1, 3:].set(99)
    of = jax.grad(lambda theta, x: d_token_losses(x, theta, lengths=LENGTHS).sum())
    cases.assert_trees_close(of(theta, padded), of(theta, X.at[1, 3:].set(0)), 1e-12)
