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
    bos_token,
    d_inference,
    ed_inference,
    eos_token,
)
from algorithms.alg14_inference import sample
from tests import cases, oracle

N_V, L_MAX = cases.N_V, cases.L_MAX
KEY = jax.random.key(0)
prompt = cases.random_tokens(5)
z = cases.random_tokens(7, seed=1)
ED = EDTransformerConfig(L_enc=1, L_dec=1, **cases.SHARED)
D = DTransformerConfig(L=1, **cases.SHARED)


def replayed(tokens):
    """An oracle's sampler that draws the given tokens, and remembers the distributions that it was asked about."""
    seen = []

    def draw(q, i):
        seen.append(q)
        return int(tokens[i])

    return draw, seen


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


@pytest.mark.parametrize("seed", range(4))
def test_greedy_transductions_are_the_oracles(seed):
    theta = cases.random_theta(ED, seed)
    x_hat, length = ed_inference(z, theta, tau=0.0, key=KEY, l_max=11)
    expected = oracle.ed_inference(z, oracle.unstack(theta), 0, None, 11)
    assert length == len(expected)
    np.testing.assert_array_equal(x_hat, expected + [eos_token(N_V)] * (11 - len(expected)))


def certain(theta, token):
    """θ whose every distribution is all but certain of one token: only its row of W_u sees the norm's β."""
    if hasattr(theta, "norm"):
        norm = theta.norm._replace(gamma=jnp.zeros_like(theta.norm.gamma), beta=jnp.ones_like(theta.norm.beta))
        theta = theta._replace(norm=norm)
    else:
        norm = theta.decoder.norm5
        norm = norm._replace(gamma=jnp.zeros_like(norm.gamma), beta=jnp.ones_like(norm.beta))
        theta = theta._replace(decoder=theta.decoder._replace(norm5=norm))
    return theta._replace(W_u=jnp.zeros((N_V, theta.W_e.shape[0])).at[token].set(100.0))


@pytest.mark.parametrize("tau", [0.0, 1e-3, 1.0])
def test_a_transduction_ends_with_eos_token_or_at_l_max(tau):
    theta = cases.random_theta(ED)
    x_hat, length = ed_inference(z, certain(theta, eos_token(N_V)), tau=tau, key=KEY)
    assert length == 2
    np.testing.assert_array_equal(x_hat, [bos_token(N_V)] + [eos_token(N_V)] * (L_MAX - 1))
    x_hat, length = ed_inference(z, certain(theta, 4), tau=tau, key=KEY)
    assert length == L_MAX
    np.testing.assert_array_equal(x_hat, [bos_token(N_V)] + [4] * (L_MAX - 1))
    x_hat, length = ed_inference(z, certain(theta, 4), tau=tau, key=KEY, l_max=1)
    assert (length, x_hat.tolist()) == (1, [bos_token(N_V)])


def test_padding_of_the_context_changes_no_token():
    theta = cases.random_theta(ED)
    padded = jnp.concatenate([z, jnp.array([-1, N_V, 3], z.dtype)])
    x_hat, length = ed_inference(padded, theta, tau=1.0, key=KEY, l_max=11, z_length=7)
    expected, expected_length = ed_inference(z, theta, tau=1.0, key=KEY, l_max=11)
    np.testing.assert_array_equal(x_hat, expected)
    assert length == expected_length


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0, math.inf])
def test_sampled_continuations_follow_the_oracles_distributions(tau):
    theta, n = cases.random_theta(D, scale=0.3), 4000
    f = jax.vmap(lambda key: d_inference(prompt, theta, l_gen=2, tau=tau, key=key))
    y = np.asarray(f(jax.random.split(jax.random.key(1), n)))
    draw, seen = replayed([0, 0])
    oracle.d_inference(prompt, oracle.unstack(theta), 2, tau, draw)
    assert quantile(seen[0], y[:, 0]) > 1e-3
    # the second token, given the most frequent first one
    first = np.bincount(y[:, 0]).argmax()
    draw, seen = replayed([first, 0])
    oracle.d_inference(prompt, oracle.unstack(theta), 2, tau, draw)
    assert quantile(seen[1], y[y[:, 0] == first, 1]) > 1e-3


@pytest.mark.parametrize("tau", [0.5, math.inf])
def test_sampled_transductions_follow_the_oracles_distributions(tau):
    theta, n = cases.random_theta(ED, scale=0.3), 4000
    f = jax.vmap(lambda key: ed_inference(z, theta, tau=tau, key=key, l_max=3))
    x_hat, _ = f(jax.random.split(jax.random.key(1), n))
    draw, seen = replayed([4, 4])
    oracle.ed_inference(z, oracle.unstack(theta), tau, draw, 3)
    assert quantile(seen[0], x_hat[:, 1]) > 1e-3
    assert quantile(seen[1], x_hat[np.asarray(x_hat[:, 1]) == 4, 2]) > 1e-3


P = np.array([0.5, 0.25, 0.125, 0.125, 0.0])


@pytest.mark.parametrize(
    ("tau", "q"),
    [
        (1.0, P),
        (0.5, np.array([16, 4, 1, 1, 0]) / 22),
        (2.0, np.sqrt(P) / np.sqrt(P).sum()),
        (100.0, np.array([*(P[:4] ** 0.01 / (P[:4] ** 0.01).sum()), 0])),
        (math.inf, np.array([0.25, 0.25, 0.25, 0.25, 0])),  # the limit: a token of probability 0 is never drawn
        (1e-4, np.array([1, 0, 0, 0, 0])),
        (0.0, np.array([1, 0, 0, 0, 0])),
    ],
)
def test_a_token_is_drawn_from_p_to_the_power_1_over_tau(tau, q):
    drawn = jax.vmap(sample, (None, None, 0))(jnp.log(P), tau, jax.random.split(KEY, 5000))
    if q.max() == 1:
        np.testing.assert_array_equal(drawn, 0)
    else:
        assert quantile(q, drawn) > 1e-3


def test_step_i_draws_with_fold_in_of_i():
    """So that cached generation draws the same tokens."""
    uniform = jnp.full(N_V, 1 / N_V)
    theta = cases.random_theta(D)
    y = d_inference(prompt, theta, l_gen=11, tau=math.inf, key=KEY)
    expected = [int(sample(jnp.log(uniform), math.inf, jax.random.fold_in(KEY, i))) for i in range(11)]
    assert y.tolist() == expected
    x_hat, length = ed_inference(z, cases.random_theta(ED), tau=math.inf, key=KEY, l_max=11)
    assert x_hat[1:length].tolist() == expected[: length - 1]


def test_greedy_takes_the_first_of_several_maxima():
    theta = certain(cases.random_theta(D), 3)
    theta = theta._replace(W_u=theta.W_u.at[9].set(100.0))
    assert d_inference(prompt, theta, l_gen=11, tau=0.0, key=KEY).tolist() == [3] * 11
