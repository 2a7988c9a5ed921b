"""How parameters start, how many there are, and that configurations are validated and frozen."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from tests import cases

SIZES = {"N_V": 101, "l_max": 61, "H": 3, "d_e": 43, "d_mlp": 89, "d_attn": 31, "d_mid": 23}
ED = alg.EDTransformerConfig(L_enc=2, L_dec=2, **SIZES)
E = alg.ETransformerConfig(L=2, d_f=37, **SIZES)
D = alg.DTransformerConfig(L=2, **SIZES)
LLAMA, GEMMA = (dataclasses.replace(D, variant=variant, d_attn=30, d_mid=30) for variant in (alg.LLAMA, alg.GEMMA))
KEY = cases.key(0)


@functools.cache
def made(config, scheme="glorot"):
    return cases.initializer(config)(KEY, config, scheme=scheme)


def named(theta):
    """In NumPy, since JAX would compile each mean of each shape."""
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(theta)}


def matrices(theta):
    """Name and value of every matrix: not a bias, a scale γ or an offset β."""
    return {name: W for name, W in named(theta).items() if name.split(".")[-1].startswith("W_")}


@pytest.mark.parametrize("config", [ED, E, D, LLAMA, GEMMA], ids=["ed", "e", "d", "RMSNorm", "an offset of scales"])
def test_glorot(config):
    """Uniform in ±√(6/(rows + columns)): within, up to the edge, of mean 0 and variance bound²/3."""
    theta = made(config)
    for name, W in named(theta).items():
        if name in matrices(theta):
            bound = np.sqrt(6 / (W.shape[-2] + W.shape[-1]))
            assert 0.98 * bound < np.abs(W).max() <= bound, name
            assert abs(W.mean()) < 5 * bound / np.sqrt(3 * W.size), name
            assert W.var() == pytest.approx(bound**2 / 3, rel=0.1), name
        else:
            np.testing.assert_array_equal(W, float("gamma" in name and config is not GEMMA), err_msg=name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("config", "residual_writes"), [(ED, 2 * 2 + 3 * 2), (E, 4), (D, 4)], ids=["ed", "e", "d"])
def test_gpt2_scheme(config, residual_writes):
    """Normal of deviation 0.02, W_p 0.01, and what writes to the residual stream divided by √(number of writes)."""
    theta = made(config, "gpt2")
    for name, W in matrices(theta).items():
        deviation = 0.02 / np.sqrt(residual_writes) if name.endswith(("W_o", "W_mlp2")) else 0.02
        deviation = 0.01 if name.endswith("W_p") else deviation
        assert W.std() == pytest.approx(deviation, rel=0.05), name
        assert abs(W.mean()) < 5 * deviation / np.sqrt(W.size), name
        assert np.abs(W).max() > 2.5 * deviation, name  # a uniform one would end at 1.73


@pytest.mark.parametrize("config", [ED, E, D], ids=["ed", "e", "d"])
@pytest.mark.parametrize("scheme", ["glorot", "gpt2"])
def test_no_two_matrices_layers_or_heads_are_alike(config, scheme):
    drawn = []
    for W in matrices(made(config, scheme)).values():
        drawn += list(W.reshape(-1, *W.shape[-2:]))
    firsts = [np.asarray(W).ravel()[:7] / np.asarray(W).std() for W in drawn]
    for a, b in itertools.combinations(firsts, 2):
        assert np.abs(a - b).max() > 1e-3


def test_shapes_dtypes_and_keys():
    theta = jax.eval_shape(lambda key: alg.init_e_transformer(key, E, dtype=jnp.dtype("bfloat16")), KEY)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(theta)} == {"bfloat16"}
    assert theta.layers.attention.heads.W_q.shape == (2, 3, 31, 43)
    assert theta.layers.attention.heads.W_v.shape == (2, 3, 23, 43)
    assert theta.layers.attention.W_o.shape == (2, 43, 3 * 23)
    assert theta.W_f.shape == (37, 43)
    assert theta.W_u.shape == (101, 37)
    a, b, c = (alg.init_d_transformer(jax.random.key(seed), D).W_e for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


GPT3_LAYER = 12 * 12288**2 + 13 * 12288  # 4 + 8 matrices; 4 + 5 biases and 2 norms
# N_V, l_max, L, H, d_e and others → how many parameters, as published
PUBLISHED = {
    "GPT-2": (alg.GPT2, (50257, 1024, 12, 12, 768), {}, 124_439_808),
    "GPT-3": (alg.GPT2, (50257, 2048, 96, 96, 12288), {}, 96 * GPT3_LAYER + (50257 + 2048 + 2) * 12288),
    "LLaMA": (alg.LLAMA, (32000, 2048, 32, 32, 4096), {"d_mlp": 11008}, 6_738_415_616),
    "BERT": (alg.BERT, (30522, 512, 12, 12, 768), {}, 109_514_298 - 2 * 768),  # less its pair of segment embeddings
    "ALBERT": (alg.ALBERT, (30000, 512, 12, 12, 768), {"d_in": 128, "N_types": 2}, 11_221_680),  # Lan et al. 2020: 12 M
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_of_parameters(name):
    variant, sizes, others, expected = PUBLISHED[name]
    sizes = dict(zip(("N_V", "l_max", "L", "H", "d_e"), sizes, strict=True)) | {"d_mlp": 4 * sizes[-1], **others}
    config = (alg.DTransformerConfig if variant in (alg.GPT2, alg.LLAMA) else alg.ETransformerConfig)(
        **sizes, variant=variant
    )
    assert alg.count_params(cases.initializer(config), config) == expected


@pytest.mark.parametrize("config", [ED, E, D], ids=["ed", "e", "d"])
def test_configurations_are_frozen_hashable_and_by_keyword(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_e = 1
    assert hash(config) == hash(dataclasses.replace(config))
    assert dataclasses.replace(config, H=1, H_kv=1) != config
    with pytest.raises(TypeError, match="positional"):
        type(config)(101, 61)


def test_sizes_that_follow_from_others():
    config = alg.ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
    assert (config.d_attn, config.d_mid, config.d_f, config.tied) == (3, 3, 6, False)
    assert dataclasses.replace(config, variant=alg.BERT, tied=True).tied
    assert alg.ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8, variant=alg.BERT).tied


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_parameters_depend_on_their_own_key(impl):
    """Also where several keys are mapped over: XLA's generator would draw all from the first."""
    config = alg.DTransformerConfig(N_V=5, l_max=3, L=1, H=1, d_e=2, d_mlp=2)
    keys = jax.random.split(jax.random.key(4, impl=impl), 2)
    together = jax.vmap(lambda key: alg.init_d_transformer(key, config))(keys)
    for n in range(2):
        alone = alg.init_d_transformer(keys[n], config)
        jax.tree.map(lambda a, b, n=n: np.testing.assert_array_equal(a[n], b), together, alone)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [None, 17])
@pytest.mark.parametrize("name", ["PAPER", "OPT", "LLAMA"])
def test_a_larger_vocabulary_changes_nothing_of_the_others(name, first):
    """Where the output is a product, the logit of a new token is the mean of the others."""
    config = dataclasses.replace(cases.D, d_attn=4, variant=alg.VARIANTS[name], tied=name == "OPT")
    theta, x = cases.random_theta(config), np.arange(17)
    moved = np.where(x < (14 if first is None else 17), x, x + 2)
    found = np.asarray(alg.d_logits(jnp.asarray(moved), alg.grow_vocabulary(theta, 2, first=first)))
    expected = np.asarray(alg.d_logits(jnp.asarray(x), theta))
    np.testing.assert_allclose(found[moved], expected, rtol=1e-12)
    new = np.setdiff1d(np.arange(19), moved)
    np.testing.assert_allclose(found[new], np.broadcast_to(expected.mean(axis=0), (2, 17)), atol=1e-12)


def test_a_theta_is_shown_by_names_and_shapes():
    shown = repr(cases.random_theta(alg.DTransformerConfig(N_V=7, l_max=5, L=2, H=1, d_e=3, d_mlp=2))).splitlines()
    assert shown[:3] == ["DTransformerParams of PAPER", "  W_e: float64[3, 7]", "  W_p: float64[3, 5]"]
    assert "  layers.attention.heads.W_q: float64[2, 1, 3, 3]" in shown
    assert len(shown) < 25
