"""The models of today: each is its changed lines, exactly; every implementation computes them, and a cache does too.

The rows are the named variants and a covering array of all pairs of the lines' values (``tests.family_cases``); the
independent judge is ``training.crosscheck.oracle.family``, loops of NumPy that were written from the publications.
"""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    GPT3,
    LLAMA,
    PAPER,
    VARIANTS,
    DTransformerConfig,
    ETransformerConfig,
    d_hidden_state,
    d_inference,
    d_transformer,
    e_transformer,
    init_d_transformer,
    init_e_transformer,
    log_loss,
)
from algorithms.lines import MLP, Attention, Embedding, RMSNorm, Rotary
from algorithms.machinery.record import Record
from algorithms.ops.attention import blockwise
from tests import family_cases as cases
from tests.cases import assert_close
from training import settings
from training.generation import generate

pytestmark = pytest.mark.sampled(2)

QUICK = (
    "LLAMA",
    "GOPHER",
    "BLOOM",
    "GEMMA2",
    "GEMMA3",
    "NEOX",
    "row10",
    "QWEN3",
    "GPT_NEO",
    "OLMO2",
    "GPT_OSS",
    "GPT3_SHARED",
    "row0",
    "row19",
)
every_row = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in cases.EVERY]
)
X = jnp.asarray(cases.X)


@functools.cache
def value_and_gradient(name, implementation):
    """Logarithms of P, and the gradient of a sum of them by θ."""
    config = cases.config_of(name)

    @jax.jit
    def compiled(theta):
        def objective(theta):
            log_P = jnp.log(d_transformer(X, theta, implementation=implementation))
            return (log_P * jnp.sin(jnp.arange(log_P.size).reshape(log_P.shape))).sum(), log_P

        (_, log_P), gradient = jax.value_and_grad(objective, has_aux=True)(theta)
        return log_P, gradient

    return compiled(cases.theta_of(config))


@every_row
def test_the_lines_are_the_oracles(name):
    config = cases.config_of(name)
    log_P, _ = value_and_gradient(name, "paper")
    for b, x in enumerate(cases.X):
        logits = cases.oracle_logits(x, cases.theta_of(config), config.variant)
        expected = logits - np.log(np.exp(logits).sum(axis=0))
        np.testing.assert_allclose(log_P[:, b], expected, atol=1e-9)


@every_row
@pytest.mark.parametrize("implementation", ["dense", pytest.param("blockwise", marks=pytest.mark.slow)])
def test_every_implementation_is_as_printed(name, implementation, monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 5)  # several blocks, and some that a window rules out
    (expected, expected_gradient), (log_P, gradient) = (value_and_gradient(name, i) for i in ("paper", implementation))
    np.testing.assert_allclose(log_P, expected, atol=1e-9)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected_gradient))
    paths = jax.tree_util.tree_flatten_with_path(expected_gradient)[0]
    for (path, theirs), ours in zip(paths, jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9 * largest, err_msg=jax.tree_util.keystr(path))


@every_row
def test_a_cache_generates_the_tokens_of_algorithm_14(name):
    config = cases.config_of(name, l_max=23)
    theta = cases.theta_of(config)
    key = jax.random.key(3)
    tokens = generate(theta, cases.X, lengths=np.array([13, 9]), config=config, l_gen=7, tau=0.8, key=key)
    for r, length in enumerate((13, 9)):
        own = jax.random.fold_in(key, r)
        expected = d_inference(X[r, :length], theta, l_gen=7, tau=0.8, key=own)
        assert tokens[r].tolist() == expected.tolist()


@every_row
def test_json_there_and_back(name):
    variant = cases.config_of(name).variant
    back = Record.from_json(json.loads(json.dumps(variant.to_json())))
    assert back == variant
    assert hash(back) == hash(variant)


def test_every_named_variant_can_be_trained():
    assert tuple(VARIANTS) == settings.VARIANTS


def test_equal_variants_compile_once():
    config = cases.config_of("LLAMA")
    theta = cases.theta_of(config)
    by_hand = PAPER.but(
        embedding=Embedding(positions=None),
        norm=RMSNorm(epsilon=1e-5),
        attention=Attention(positions=Rotary(base=20.0), biases=False),
        mlp=MLP(activation="silu", gated=True, biases=False),
    )
    d_transformer.clear_cache()
    for variant in (config.variant, by_hand, Record.from_json(config.variant.to_json())):
        d_transformer(X, theta._replace(variant=variant))
    assert d_transformer._cache_size() == 1


def test_a_variant_names_what_it_changes_and_nothing_else():
    changed = {
        name
        for name in ("embedding", "norm", "attention", "mlp", "order", "unembedding")
        if getattr(LLAMA, name) != getattr(PAPER, name)
    }
    assert changed == {"embedding", "norm", "attention", "mlp"}
    assert set(LLAMA.to_json()) - {"record"} == changed


def test_windows_in_turn_are_masks_layer_by_layer():
    """GPT3's layers, one by one with an explicit mask each."""
    config = cases.config_of("GPT3")
    theta = cases.theta_of(config)
    plain = config.variant.but(attention=Attention())
    t = np.arange(13)
    band = (t[:, None] <= t[None]) & (t[None] - 5 < t[:, None])
    found = d_hidden_state(X, theta)

    def only(l):
        return jax.tree.map(lambda a: a[l : l + 1], theta.layers)

    expected = cases.oracle_logits(cases.X[0], theta, config.variant)
    with_masks = cases.oracle_logits(cases.X[0], theta._replace(layers=only(0)), plain)
    one = d_transformer(X, theta._replace(layers=only(0)))
    windowed = d_transformer(X, theta._replace(layers=only(1), variant=plain), mask=jnp.asarray(band))
    by_line = plain.but(attention=Attention(window=5))
    by_line = d_transformer(X, theta._replace(layers=only(1), variant=by_line))
    assert_close(windowed, by_line)
    assert_close(np.log(one[:, 0]) - np.log(one[:1, 0]), with_masks - with_masks[:1])
    assert found.shape == (10, 2, 13)
    assert np.isfinite(expected).all()


def test_gpt3_has_175_billion_parameters():
    """Document 000: d = 12288, 96 layers, 96 heads of 128, T = 2048, 50257 tokens."""
    sizes = {"N_V": 50257, "l_max": 2048, "L": 96, "H": 96, "d_e": 12288, "d_mlp": 4 * 12288}
    for tied, billions in ((True, 174.6), (False, 175.2)):
        config = DTransformerConfig(**sizes, variant=GPT3, tied=tied)
        shapes = jax.eval_shape(lambda c=config: init_d_transformer(jax.random.key(0), c))
        count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
        assert round(count / 1e9, 1) == billions
        hidden = jax.eval_shape(
            lambda theta, x: d_hidden_state(x, theta),
            shapes,
            jax.ShapeDtypeStruct((2048,), jnp.int32),
        )
        assert hidden.shape == (12288, 2048)


REFUSED = [
    (lambda: cases.config_of("LLAMA", H_kv=4), "DTransformerConfig.H_kv: expected a divisor of H = 6, got 4"),
    (
        lambda: cases.config_of("LLAMA", d_attn=5),
        "Rotary: expected an even number of rows to rotate, got 5 of d_attn = 5",
    ),
    (lambda: Rotary(base=1.0), "Rotary.base: expected a number > 1, got 1.0"),
    (lambda: PAPER.but(attention=Attention(window=0)), "Attention.window: expected a width of at least 1 token"),
    (
        lambda: d_transformer(X, cases.theta_of(cases.config_of("LLAMA"))._replace(variant=PAPER)),
        "theta.W_p: expected an array [d_e, l_max] in PAPER, got None; use",
    ),
    (
        lambda: d_transformer(X, cases.theta_of(cases.config_of("OPT"))._replace(variant=LLAMA)),
        "theta.W_p: expected None in LLAMA, got parameters; use the variant",
    ),
    (
        lambda: d_transformer(
            X, cases.theta_of(cases.config_of("NEOX"))._replace(variant=PAPER.but(order="norm_last"))
        ),
        "theta.W_p: expected an array",
    ),
    (
        lambda: e_transformer(
            X,
            init_e_transformer(jax.random.key(0), ETransformerConfig(**cases.SIZES))._replace(
                variant=PAPER.but(order="side_by_side")
            ),
        ),
        "variant.order: expected None or one of 'norm_last', 'norm_first', 'no_norm' here, got 'side_by_side'",
    ),
    (
        lambda: d_transformer(
            X,
            cases.theta_of(cases.config_of("GEMMA2")),
            implementation="cudnn",
        ),
        'implementation="cudnn" is not available',
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_contradicts_is_refused(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        call()


def test_the_loss_knows_the_cap_of_the_logits():
    config = cases.config_of("GEMMA2")
    theta, u = cases.theta_of(config), config.variant.unembedding
    hidden = d_hidden_state(X, theta)
    P = d_transformer(X, theta)
    found = log_loss(hidden, u.matrix(theta), X, cap=u.cap)
    expected = -np.log(np.take_along_axis(np.asarray(P), cases.X[None], axis=0)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-10)
