"""Algorithms 11, 12 and 13 against the oracle's SGD on complex-step gradients: several epochs, padded sequences."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from tests import cases
from training import oracle

pytestmark = pytest.mark.sampled(1)

N_V = cases.TINY["N_V"]
ED = alg.EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY)
E = alg.ETransformerConfig(L=1, d_f=2, **cases.TINY)
D = alg.DTransformerConfig(L=1, **cases.TINY)
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


@pytest.mark.end_to_end
def test_ed_training_is_the_oracles():
    theta = cases.random_theta(ED)
    expected = oracle.ed_training(cut(z, z_lengths), cut(x, x_lengths), oracle.unstack(theta), 2, ETA)
    for filler in (0, -1, N_V):  # what stands in the padding does not matter
        z_padded, x_padded = with_padding(z, z_lengths, filler), with_padding(x, x_lengths, filler)
        lengths = {"z_length": z_lengths, "length": x_lengths}
        assert_trained(alg.ed_training(z_padded, x_padded, theta, N_epochs=2, eta=ETA, **lengths), expected, theta)


def test_d_training_is_the_oracles():
    theta = cases.random_theta(D)
    expected = oracle.d_training(cut(x, x_lengths), oracle.unstack(theta), 2, ETA)
    for filler in (0, -1, N_V):
        x_padded = with_padding(x, x_lengths, filler)
        assert_trained(alg.d_training(x_padded, theta, N_epochs=2, eta=ETA, length=x_lengths), expected, theta)


@pytest.mark.end_to_end
@pytest.mark.parametrize("p_mask", [0.5, None])
def test_e_training_is_the_oracles_with_the_masks_of_its_keys(p_mask):
    """Epoch i masks sequence n with fold_in(fold_in(key, i), n), which None splits to draw a probability, too."""
    theta, key = cases.random_theta(E), jax.random.key(2)
    keys = [[jax.random.fold_in(jax.random.fold_in(key, i), n) for n in range(3)] for i in range(2)]
    p = [[p_mask] * 3] * 2
    if p_mask is None:
        of_p = [[jax.random.split(one) for one in epoch] for epoch in keys]
        p = [[float(jax.random.uniform(first, minval=1e-3)) for first, _ in epoch] for epoch in of_p]
        keys = [[second for _, second in epoch] for epoch in of_p]
    masked = [[np.asarray(jax.random.bernoulli(keys[i][n], p[i][n], (5,))) for n in range(3)] for i in range(2)]
    assert p_mask is None or len({tuple(m) for epoch in masked for m in epoch}) == 6  # no mask is drawn twice
    drawn = p if p_mask is None else None
    expected = oracle.e_training(cut(x, x_lengths), oracle.unstack(theta), 2, ETA, masked, drawn)
    for filler in (0, -1, alg.mask_token(N_V)):
        options = {"N_epochs": 2, "eta": ETA, "p_mask": p_mask, "key": key, "length": x_lengths}
        assert_trained(alg.e_training(with_padding(x, x_lengths, filler), theta, **options), expected, theta)


def test_without_lengths_every_token_counts():
    theta = cases.random_theta(D)
    every = alg.d_training(x, theta, N_epochs=2, eta=ETA, length=np.array([5, 5, 5]))
    cases.assert_trees_close(alg.d_training(x, theta, N_epochs=2, eta=ETA), every, 1e-14)


def test_no_epoch_and_no_step_change_nothing():
    theta = cases.random_theta(D)
    for options in ({"N_epochs": 0, "eta": ETA}, {"N_epochs": 2, "eta": 0.0}):
        chex.assert_trees_all_equal(alg.d_training(x, theta, **options), theta)


def test_a_sequence_of_one_token_or_none_teaches_nothing():
    """There is no next token to predict, and nothing is 0/0."""
    theta = cases.random_theta(D)
    lengths = np.array([0, 1, 1])
    chex.assert_trees_all_equal(alg.d_training(x, theta, N_epochs=2, eta=ETA, length=lengths), theta)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_what_is_masked_depends_on_its_own_key(impl):
    """Also where runs with several keys are mapped over: XLA's generator would draw all from the first."""
    theta, keys = cases.random_theta(E), jax.random.split(jax.random.key(4, impl=impl), 2)
    train = functools.partial(alg.e_training, x, theta, N_epochs=1, eta=ETA, p_mask=0.5)
    together = jax.vmap(lambda key: train(key=key))(keys)
    for n in range(2):
        cases.assert_trees_close(
            jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[n], together), train(key=keys[n]), 1e-13
        )


@pytest.mark.thorough
def test_layers_are_unrolled_on_a_gpu_if_the_updates_earn_it():
    """Of the four loops, the two over the layers go: forward and backward."""
    theta, sequences = cases.random_theta(alg.DTransformerConfig(L=2, **cases.TINY)), np.zeros((2, 4), np.int32)

    def loops(N_epochs):
        with alg.for_platform("cuda"):
            traced = jax.jit(functools.partial(alg.d_training, N_epochs=N_epochs, eta=ETA)).trace(sequences, theta)
        return traced.lower(lowering_platforms=("cuda",)).as_text().count("stablehlo.while")

    assert loops(1999) == loops(2000) + 2
