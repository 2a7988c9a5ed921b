"""A cache that is a value: tokens read a few at a time have the columns of `d_logits` of whole sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import Latent
from tests import cases, family_cases
from tests.own_lines.retention import HYBRID

pytestmark = pytest.mark.sampled(2, tests=6)

l = 11
SIZES = {"N_V": 17, "l_max": 13, "L": 4, "H": 2, "d_e": 12, "d_mlp": 7}
LATENT = alg.LLAMA.but(attention=Latent(d_c=6, d_r=4, d_q=5))
HYBRIDS = {"HYBRID": HYBRID, "PAPER": alg.PAPER, "LATENT_LINES": LATENT}
HYBRIDS = {name: alg.DTransformerConfig(**SIZES, d_attn=4, variant=variant) for name, variant in HYBRIDS.items()}
x = np.random.default_rng(0).integers(0, 17, (2, l))


def config_of(name):
    return HYBRIDS[name] if name in HYBRIDS else family_cases.config_of(name)


def read(theta, cache, x, at):
    """The columns of x, read piece by piece, ``at`` being where these begin."""
    found = []
    for first, end in zip(at, (*at[1:], x.shape[-1]), strict=True):
        logits, cache = alg.read_tokens(theta, cache, x[..., first:end], first)
        found.append(logits)
    return jnp.concatenate(found, axis=-1), cache


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*family_cases.EVERY, *family_cases.OWN, *HYBRIDS])
def test_tokens_read_in_pieces_have_the_columns_of_whole_sequences(name):
    """Also after others were read in their place, further than they reach."""
    config = config_of(name)
    theta = family_cases.theta_of(config)
    expected = alg.d_logits(x, theta)
    cache = alg.empty_cache(config, 2)
    _, cache = alg.read_tokens(theta, cache, (x[:, :8] + 1) % 17, 0)
    logits, cache = read(theta, cache, x, (0, 8, 9, 10))
    cases.assert_close(logits, expected, 1e-11)
    _, cache = alg.read_tokens(theta, cache, (x[:, 3:] + 5) % 17, 3)
    again, _ = alg.read_tokens(theta, cache, x[:, 3:], 3)
    cases.assert_close(again, expected[..., 3:], 1e-11)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["HYBRID", "PAPER", "BLOOM", "row1"])
def test_each_sequence_continues_where_it_is(name):
    """With two batch axes, and in a cache with room for these tokens alone."""
    config = config_of(name)
    theta, n = family_cases.theta_of(config), jnp.array([[3], [7]])
    _, cache = alg.read_tokens(theta, alg.empty_cache(config, (2, 1), l_max=l), x[:, None, :8], 0)
    more = jnp.stack([x[0, 3:7], x[1, 7:11]])[:, None]
    logits, cache = alg.read_tokens(theta, cache, more, n)
    whole = alg.d_logits(x[:, None], theta)
    cases.assert_close(logits, jnp.stack([whole[:, 0, :, 3:7], whole[:, 1, :, 7:11]], axis=1), 1e-11)
    assert {a.shape[-3:] for a in jax.tree.leaves(cache)} == {(2, 1, l)}


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["HYBRID", "PAPER"])
def test_gradients_are_those_of_whole_sequences(name):
    config = config_of(name)
    theta = family_cases.theta_of(config)
    G, y = cases.normal(17, 2, 10), x[:, :10]  # two pieces of one size are traced once

    def in_pieces(theta):
        return (read(theta, alg.empty_cache(config, 2), y, (0, 5))[0] * G).sum()

    actual = jax.jit(jax.grad(in_pieces))(theta)
    cases.assert_trees_close(actual, jax.jit(jax.grad(lambda theta: (alg.d_logits(y, theta) * G).sum()))(theta), 1e-10)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["HYBRID", "PAPER"])
def test_a_rollout_in_a_scan_by_vmap_over_parameters_has_the_tokens_of_algorithm_14(name):
    config, prompt = config_of(name), jnp.asarray(x[0, :4])
    thetas = jax.tree.map(lambda *a: np.stack(a), *(cases.random_theta(config, seed) for seed in range(3)))

    def rollout(theta):
        logits, cache = alg.read_tokens(theta, alg.empty_cache(config), prompt, 0)

        def step(state, n):
            y, cache = state
            logits, cache = alg.read_tokens(theta, cache, y[None], n)
            return (jnp.argmax(logits[:, -1]), cache), y

        return jax.lax.scan(step, (jnp.argmax(logits[:, -1]), cache), 4 + jnp.arange(6))[1]

    actual = jax.jit(jax.vmap(rollout))(thetas)
    for i, of_theta in enumerate(np.asarray(actual)):
        theta = jax.tree.map(lambda a, i=i: a[i], thetas)
        expected = alg.d_inference(prompt, theta, l_gen=6, tau=0.0, key=jax.random.key(0))
        np.testing.assert_array_equal(of_theta, expected)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["HYBRID", "LLAMA"])
def test_narrow_types_round_as_whole_sequences_do(name):
    config = config_of(name)
    theta, y = family_cases.theta_of(config, "bfloat16"), x[:, :10]
    exact = np.asarray(alg.d_logits(y, jax.tree.map(lambda a: np.asarray(a, np.float64), theta)))
    error = np.abs(np.asarray(alg.d_logits(y, theta), np.float64) - exact).max()
    for dtype in ("bfloat16", None):
        logits, _ = read(theta, alg.empty_cache(config, 2, dtype=dtype), y, (0, 5))
        assert np.abs(np.asarray(logits, np.float64) - exact).max() < 3 * error + 1e-3 * np.abs(exact).max()


def test_columns_of_embeddings_are_read_as_tokens_are():
    config = config_of("LLAMA")
    theta = family_cases.theta_of(config)
    E = cases.normal(10, 2, 3)
    _, cache = alg.read_tokens(theta, alg.empty_cache(config, 2), E, 0)
    logits, _ = alg.read_tokens(theta, cache, x[:, :5], 3)
    whole = alg.d_logits(jnp.concatenate([E, theta.W_e[:, x[:, :5]]], axis=-1), theta)
    cases.assert_close(logits, whole[..., 3:], 1e-11)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["HYBRID", "LLAMA", "BLOOM", "GOPHER"])
def test_what_has_no_slot_is_nan_and_reaches_nothing(name):
    config = config_of(name)
    theta = family_cases.theta_of(config)
    cache = alg.empty_cache(config, 2, l_max=8)
    _, cache = alg.read_tokens(theta, cache, x[:, :7], 0)
    logits, cache = jax.jit(alg.read_tokens)(theta, cache, jnp.full((2, 3), 99), 6)  # no tokens, and two without slots
    assert np.isnan(logits).all()
    logits, _ = alg.read_tokens(theta, cache, x[:, 6:9], jnp.asarray(6))
    assert np.isnan(logits[..., 2:]).all()
    cases.assert_close(logits[..., :2], alg.d_logits(x[:, :8], theta)[..., 6:], 1e-11)


PARENTS = [-1, 0, 0, 1, 2, 2]
"""Of a tree of drafts; −1 is the last token before."""


def branch(i):
    """The tokens of the tree up to i."""
    return [] if i < 0 else [*branch(PARENTS[i]), i]


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["PAPER", "LLAMA4", "GEMMA2", "GPT_OSS"])
def test_a_tree_of_drafts_is_verified_in_one_pass(name):
    """The columns are those of each branch by itself; also where windows and chunks count the depth in the tree."""
    config, n = config_of(name), np.array([5, 3])
    theta, tree = family_cases.theta_of(config), np.random.default_rng(1).integers(0, config.N_V, (2, len(PARENTS)))
    mask = np.array([[z in branch(x) for x in range(len(PARENTS))] for z in range(len(PARENTS))])
    positions = n[:, None] + np.array([len(branch(i)) - 1 for i in range(len(PARENTS))])
    before = x[:, :5] % config.N_V
    _, cache = alg.read_tokens(theta, alg.empty_cache(config, 2), before, 0)
    logits, _ = alg.read_tokens(theta, cache, tree, n, mask=mask, positions=positions.astype(np.uint8))
    for b in range(2):
        for leaf in (3, 4, 5):
            text = np.concatenate([before[b, : n[b]], tree[b, branch(leaf)]])
            expected = family_cases.oracle_logits(text, theta, config.variant)
            cases.assert_close(logits[:, b, branch(leaf)], expected[:, n[b] :], 1e-9)


@pytest.mark.sampled(1, tests=6)
@pytest.mark.parametrize("name", ["PAPER", "T5", "BART"])
def test_algorithm_8_continues_from_the_keys_and_values_of_its_context(name):
    sizes = {name: size for name, size in SIZES.items() if name != "L"}
    variant = alg.VARIANTS[name]
    theta = cases.random_theta(alg.EDTransformerConfig(**sizes, L_enc=1, L_dec=2, variant=variant))
    z, z_length = np.random.default_rng(2).integers(0, 17, (2, 5)), np.array([5, 3], np.uint8)
    Z = alg.ed_encoding(z, theta, z_length=z_length)
    cache = alg.context_cache(Z, theta, l_max=11, z_length=z_length)
    logits, cache = read(theta, cache, x, (0, 7))
    for b, n in enumerate(z_length):
        expected = family_cases.oracle_logits(x[b], theta, variant, z=z[b, :n])
        cases.assert_close(logits[:, b], expected, 1e-9)


def test_a_scale_multiplies_the_scores_of_whole_sequences_and_of_cached_latents():
    config = config_of("LATENT_LINES")
    theta, scaled = family_cases.theta_of(config), config.variant.attention.but(scale=0.3)
    W = theta.layers.attention
    by_hand = W._replace(W_q=0.3 * 8**0.5 * W.W_q, W_qr=0.3 * 8**0.5 * W.W_qr)  # queries have 4 + 4 rows
    expected = alg.d_logits(x, theta._replace(layers=theta.layers._replace(attention=by_hand)))
    scaled = theta._replace(variant=config.variant.but(attention=scaled))
    cases.assert_close(alg.d_logits(x, scaled), expected)
    cases.assert_close(alg.read_tokens(scaled, alg.empty_cache(config, 2), x, 0)[0], expected)
