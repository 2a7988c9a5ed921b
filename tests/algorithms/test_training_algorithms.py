"""Algorithms 11, 12 and 13 against the oracle's SGD on complex-step gradients: several epochs, padded sequences."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    d_training,
    e_training,
    ed_training,
    mask_token,
)
from algorithms.alg11_training import d_loss, e_loss, ed_loss, mask_tokens
from tests import cases, oracle

N_V = cases.TINY["N_V"]
ED = EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY)
E = ETransformerConfig(L=1, d_f=2, **cases.TINY)
D = DTransformerConfig(L=1, **cases.TINY)
x, x_lengths = cases.random_tokens(3, 5, n=N_V), np.array([5, 2, 3])
z, z_lengths = cases.random_tokens(3, 4, n=N_V, seed=1), np.array([1, 4, 3])
ETA = 0.07


def cut(sequences, lengths):
    """The sequences without their padding, as the oracle takes them."""
    return [np.asarray(s[:l]) for s, l in zip(sequences, lengths, strict=True)]


def with_padding(sequences, lengths, filler):
    return jnp.asarray(np.where(np.arange(sequences.shape[1]) < lengths[:, None], sequences, filler))


def assert_trained(theta_hat, expected, theta):
    trained, initial = oracle.flatten(oracle.unstack(theta_hat)), oracle.flatten(oracle.unstack(theta))
    for name, W in oracle.flatten(expected).items():
        cases.assert_close(trained[name], W, 1e-10, name)
    assert any((trained[name] != initial[name]).any() for name in initial)


def test_ed_training_is_the_oracles():
    theta = cases.random_theta(ED)
    expected = oracle.ed_training(cut(z, z_lengths), cut(x, x_lengths), oracle.unstack(theta), 2, ETA)
    for filler in (0, -1, N_V):  # what stands in the padding does not matter
        z_padded, x_padded = with_padding(z, z_lengths, filler), with_padding(x, x_lengths, filler)
        lengths = {"z_lengths": z_lengths, "x_lengths": x_lengths}
        assert_trained(ed_training(z_padded, x_padded, theta, N_epochs=2, eta=ETA, **lengths), expected, theta)


def test_d_training_is_the_oracles():
    theta = cases.random_theta(D)
    expected = oracle.d_training(cut(x, x_lengths), oracle.unstack(theta), 2, ETA)
    for filler in (0, -1, N_V):
        x_padded = with_padding(x, x_lengths, filler)
        assert_trained(d_training(x_padded, theta, N_epochs=2, eta=ETA, lengths=x_lengths), expected, theta)


def test_e_training_is_the_oracles_with_the_masks_of_its_keys():
    """Epoch i masks sequence n with fold_in(fold_in(key, i), n)."""
    theta, key, p_mask = cases.random_theta(E), jax.random.key(2), 0.5
    masked = [
        [
            np.asarray(jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(key, i), n), p_mask, (5,)))
            for n in range(3)
        ]
        for i in range(2)
    ]
    assert len({tuple(m) for epoch in masked for m in epoch}) == 6  # no mask is drawn twice
    expected = oracle.e_training(cut(x, x_lengths), oracle.unstack(theta), 2, ETA, masked)
    for filler in (0, -1, mask_token(N_V)):
        options = {"N_epochs": 2, "eta": ETA, "p_mask": p_mask, "key": key, "lengths": x_lengths}
        assert_trained(e_training(with_padding(x, x_lengths, filler), theta, **options), expected, theta)


def test_without_lengths_every_token_counts():
    theta = cases.random_theta(D)
    every = d_training(x, theta, N_epochs=2, eta=ETA, lengths=np.array([5, 5, 5]))
    cases.assert_trees_close(d_training(x, theta, N_epochs=2, eta=ETA), every, 1e-14)


def test_no_epoch_and_no_step_change_nothing():
    theta = cases.random_theta(D)
    for options in ({"N_epochs": 0, "eta": ETA}, {"N_epochs": 2, "eta": 0.0}):
        chex.assert_trees_all_equal(d_training(x, theta, **options), theta)


def test_a_sequence_of_one_token_or_none_teaches_nothing():
    """There is no next token to predict, and nothing is 0/0."""
    theta = cases.random_theta(D)
    lengths = np.array([0, 1, 1])
    chex.assert_trees_all_equal(d_training(x, theta, N_epochs=2, eta=ETA, lengths=lengths), theta)


@pytest.mark.parametrize(("length", "z_length"), [(5, 4), (4, 1), (1, 2)])
def test_the_losses_are_the_oracles(length, z_length):
    l, l_z = jnp.asarray(length), jnp.asarray(z_length)
    theta = cases.random_theta(D)
    cases.assert_close(jax.jit(d_loss)(theta, x[0], l), oracle.d_loss(x[0, :length], oracle.unstack(theta)))
    theta = cases.random_theta(ED)
    expected = oracle.ed_loss(z[0, :z_length], x[0, :length], oracle.unstack(theta))
    cases.assert_close(jax.jit(ed_loss)(theta, z[0], x[0], l_z, l), expected)
    theta, x_tilde = cases.random_theta(E), x[0].at[jnp.array([0, 3])].set(mask_token(N_V))
    expected = oracle.e_loss(x[0, :length], x_tilde[:length], oracle.unstack(theta))
    cases.assert_close(jax.jit(e_loss)(theta, x[0], x_tilde, l), expected)


def test_masked_are_the_share_of_p_mask_each_by_itself():
    n, p_mask = 20_000, 0.15
    hidden = np.asarray(mask_tokens(jnp.zeros(n, int), p_mask, jax.random.key(0), 4)) == 4
    assert abs(hidden.sum() - n * p_mask) < 5 * np.sqrt(n * p_mask * (1 - p_mask))
    pairs = (hidden[1:] & hidden[:-1]).sum()  # of neighbours: as often as independent ones
    assert abs(pairs - n * p_mask**2) < 6 * np.sqrt(n * p_mask**2)
