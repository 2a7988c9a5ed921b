"""Algorithms 14 and 15 against the oracle: token by token when greedy, by frequency when sampled."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from algorithms import (
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    bos_token,
    d_inference,
    e_inference,
    ed_inference,
    eos_token,
)
from algorithms.alg14_inference import sample, tempered
from algorithms.ops.dropout import seed_of
from tests import cases
from tests.algorithms.test_oracle import replayed
from training import oracle

pytestmark = pytest.mark.sampled(2)

N_V, L_MAX = cases.N_V, cases.L_MAX
KEY = cases.key(0)
prompt = cases.random_tokens(5)
z = cases.random_tokens(7, seed=1)
ED = EDTransformerConfig(L_enc=1, L_dec=1, **cases.SHARED)
D = DTransformerConfig(L=1, **cases.SHARED)
E = ETransformerConfig(L=1, **cases.SHARED)
drawn_with = jax.jit(jax.vmap(sample, (None, None, 0)))


def quantile(q, drawn):
    """A p-value: how probable counts so uneven are."""
    counts = np.bincount(np.asarray(drawn), minlength=len(q))
    assert counts[q == 0].sum() == 0
    return chisquare(counts[q > 0], counts.sum() * q[q > 0]).pvalue


@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_continuations_are_the_oracles(seed):
    theta = cases.random_theta(D, seed)
    y = d_inference(prompt, theta, l_gen=11, tau=0.0, key=KEY)
    assert y.shape == (11,)
    assert y.dtype == prompt.dtype
    np.testing.assert_array_equal(y, oracle.d_inference(prompt, oracle.unstack(theta), 11, 0, None))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("steps", "tau"), [(3, 0.0), (3, 0.7), (1, 1.0), (9, 0.7)])
def test_masks_are_filled_as_by_the_oracle(steps, tau):
    """The most confident first; 5 masks in 3 steps are 2, 2 and 1. Padding that looks like a mask stays."""
    theta, mask = cases.random_theta(E), 4
    x = np.array([[3, mask, mask, 1, mask, mask, mask], [mask, 0, 2, 1, mask, 5, 1]])
    keys, lengths = jax.random.split(KEY), (7, 4)
    filled = e_inference(x, theta, steps=steps, tau=tau, key=keys, mask=mask, length=np.array(lengths))

    for row, key, l, y in zip(x, keys, lengths, filled, strict=True):

        def sample(q, i, key=key, l=l):
            of_token = jax.random.fold_in(jax.random.fold_in(key, i // l), i % l)
            return jax.random.categorical(of_token, jnp.log(jnp.asarray(q)))

        expected = oracle.e_inference(row[:l], oracle.unstack(theta), steps, tau, sample, mask_token=mask)
        assert y.tolist() == [*expected, *row[l:].tolist()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_greedy_transductions_are_the_oracles(seed):
    theta = cases.random_theta(ED, seed)
    x_hat, length = ed_inference(z, theta, tau=0.0, key=KEY, l_max=11)
    expected = oracle.ed_inference(z, oracle.unstack(theta), 0, None, 11)
    assert length == len(expected)
    np.testing.assert_array_equal(x_hat, expected + [eos_token(N_V)] * (11 - len(expected)))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("tau", [0.0, 1e-3, 1.0])
def test_a_transduction_ends_with_eos_token_or_at_l_max(tau):
    theta = cases.random_theta(ED)
    x_hat, length = ed_inference(z, cases.certain(theta, eos_token(N_V)), tau=tau, key=KEY)
    assert length == 2
    np.testing.assert_array_equal(x_hat, [bos_token(N_V)] + [eos_token(N_V)] * (L_MAX - 1))
    x_hat, length = ed_inference(z, cases.certain(theta, 4), tau=tau, key=KEY)
    assert length == L_MAX
    np.testing.assert_array_equal(x_hat, [bos_token(N_V)] + [4] * (L_MAX - 1))
    x_hat, length = ed_inference(z, cases.certain(theta, 4), tau=tau, key=KEY, l_max=1)
    assert (length, x_hat.tolist()) == (1, [bos_token(N_V)])


def test_padding_of_the_context_changes_no_token():
    theta = cases.random_theta(ED)
    padded = jnp.concatenate([z, jnp.array([-1, N_V, 3], z.dtype)])
    x_hat, length = ed_inference(padded, theta, tau=1.0, key=KEY, l_max=11, z_length=7)
    expected, expected_length = ed_inference(z, theta, tau=1.0, key=KEY, l_max=11)
    np.testing.assert_array_equal(x_hat, expected)
    assert length == expected_length


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0, math.inf])
def test_sampled_continuations_follow_the_oracles_distributions(tau):
    theta, n = cases.random_theta(D, scale=0.3), 4000
    f = jax.vmap(lambda key: d_inference(prompt, theta, l_gen=2, tau=tau, key=key))
    y = np.asarray(f(jax.random.split(jax.random.key(1), n)))
    asked, draw = replayed(0, 0)
    oracle.d_inference(prompt, oracle.unstack(theta), 2, tau, draw)
    assert quantile(asked[0][0], y[:, 0]) > 1e-3
    # the second token, given the most frequent first one
    first = int(np.bincount(y[:, 0]).argmax())
    asked, draw = replayed(first, 0)
    oracle.d_inference(prompt, oracle.unstack(theta), 2, tau, draw)
    assert quantile(asked[1][0], y[y[:, 0] == first, 1]) > 1e-3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tau", [0.5, math.inf])
def test_sampled_transductions_follow_the_oracles_distributions(tau):
    theta, n = cases.random_theta(ED, scale=0.3), 4000
    f = jax.vmap(lambda key: ed_inference(z, theta, tau=tau, key=key, l_max=3))
    x_hat, _ = f(jax.random.split(jax.random.key(1), n))
    asked, draw = replayed(4, 4)
    oracle.ed_inference(z, oracle.unstack(theta), tau, draw, 3)
    assert quantile(asked[0][0], x_hat[:, 1]) > 1e-3
    assert quantile(asked[1][0], x_hat[np.asarray(x_hat[:, 1]) == 4, 2]) > 1e-3


def test_step_i_draws_with_fold_in_of_i():
    """So that cached generation draws the same tokens."""
    theta = cases.random_theta(D)
    y = d_inference(prompt, theta, l_gen=11, tau=math.inf, key=KEY)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, np.arange(11))
    expected = drawn_with(np.log(np.full(N_V, 1 / N_V)), math.inf, keys).tolist()
    assert y.tolist() == expected
    x_hat, length = ed_inference(z, cases.random_theta(ED), tau=math.inf, key=KEY, l_max=11)
    assert x_hat[1:length].tolist() == expected[: length - 1]


def test_greedy_takes_the_first_of_several_maxima():
    theta = cases.certain(cases.random_theta(D), 3)
    theta = theta._replace(W_u=theta.W_u.at[9].set(100.0))
    assert d_inference(prompt, theta, l_gen=11, tau=0.0, key=KEY).tolist() == [3] * 11


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_high_temperature_sees_what_underflows(dtype):
    """In float32, p = e^−200 is 0; at τ = 100 it is raised to e^−2."""
    log_p = jnp.asarray([0.0, -200.0, -400.0, -jnp.inf], dtype)
    q = np.exp([0.0, -2.0, -4.0, -np.inf])
    drawn = drawn_with(log_p, 100.0, jax.random.split(KEY, 5000))
    assert quantile(q / q.sum(), drawn) > 1e-3


@pytest.mark.parametrize("tau", [1e-30, 1.2e-38, 1e-40, 1e-300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_temperature_near_0_takes_the_likeliest(tau, dtype):
    log_p = jnp.asarray([-5.0, -3.0, -0.06, -4.0], dtype)
    drawn = drawn_with(log_p, jnp.asarray(tau), jax.random.split(KEY, 50))
    np.testing.assert_array_equal(drawn, 2)


@pytest.mark.parametrize("tau", [0.0, 1e-40, 0.3, 7.0, math.inf])
def test_the_tempered_distribution_has_no_nan(tau):
    log_p = jnp.array([[0.0, -jnp.inf, -1e30], [-jnp.inf, -jnp.inf, -1e30], [-3.0, -jnp.inf, 0.0]], jnp.float32)
    with jax.debug_nans(True):
        log_q = np.asarray(tempered(log_p, jnp.asarray(tau, jnp.float32)))
    np.testing.assert_array_equal(np.isneginf(log_q[:2, :2]), np.isneginf(log_p[:2, :2]))
    np.testing.assert_array_equal(log_q.max(axis=0), [0, -np.inf, 0])


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
class TestKeysOfXLAsGenerator:
    """Under vmap, XLA's generator draws a whole batch from its first key."""

    @pytest.mark.sampled(1)
    def test_a_token_does_not_depend_on_another_requests_key(self, impl):
        keys = jax.random.split(jax.random.key(0, impl=impl), 3)
        log_P = jnp.log(jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(1000), size=3).T))
        together = jax.jit(lambda log_P, keys: sample(log_P, 1.0, keys))(log_P, keys)
        for b in range(3):
            assert together[b] == sample(log_P[:, b], 1.0, keys[b])
        mapped = jax.jit(jax.vmap(lambda log_p, key: sample(log_p, 1.0, key), (1, 0)))(log_P, keys)
        np.testing.assert_array_equal(mapped, together)

    def test_what_is_dropped_does_not_depend_on_another_sequences_key(self, impl):
        keys = jax.random.split(jax.random.key(0, impl=impl), 3)
        seeds = seed_of(keys)
        for b in range(3):
            np.testing.assert_array_equal(seeds[b], seed_of(keys[b]))
        np.testing.assert_array_equal(jax.jit(jax.vmap(seed_of))(keys), seeds)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tau", [0.0, 0.7])
def test_after_a_token_outside_of_the_vocabulary_there_is_none(tau):
    theta = cases.random_theta(cases.D)
    x = jnp.array([[3, 17, 2], [3, 1, 2]])
    tokens = d_inference(x, theta, l_gen=2, tau=tau, key=jax.random.split(jax.random.key(0), 2))
    assert tokens[0].tolist() == [-1, -1]
    assert np.all(tokens[1] >= 0)
