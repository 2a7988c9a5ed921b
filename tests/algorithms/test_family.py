"""The models of today: each is its changed lines, exactly; every implementation computes them, and a cache does too.

The rows are the named variants and, for each of Algorithms 8 to 10, a covering array of all pairs of the lines' values
(``tests.family_cases``), and the published records at drawn sizes; the independent judge is ``training.oracle.family``,
loops of NumPy that were written from the publications.
"""

import functools
import json
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import Attention, LayerNorm
from algorithms.machinery.record import Record
from algorithms.masks import StructuralMask
from tests import family_cases as cases
from tests.cases import assert_trees_close, quick_of, random_theta, small_blocks
from tests.conftest import SEED
from training.crosscheck.changes import ARCHITECTURES
from training.crosscheck.models import small
from training.generation import generate, translate

pytestmark = pytest.mark.sampled(2)

QUICK = ("LLAMA", "GOPHER", "BLOOM", "GEMMA2", "GEMMA3", "NEOX", "QWEN3", "GPT_NEO", "OLMO2", "GPT_OSS", "GPT3_SHARED")
QUICK += ("DEEPSEEK", "IN_TURN", "row3", "row23", "row45")
WINDOWED = ("encoder3", "encoder9", "encoder_decoder3", "encoder_decoder11")
every_decoder = pytest.mark.parametrize("name", quick_of(QUICK, cases.EVERY))
every_encoder_decoder = pytest.mark.parametrize("name", quick_of(WINDOWED, cases.ENCODER_DECODERS))
every_row = pytest.mark.parametrize(
    "name", quick_of(QUICK + WINDOWED, [*cases.EVERY, *cases.ENCODERS, *cases.ENCODER_DECODERS])
)
X, Z = jax.device_put(np.asarray(cases.X)), jax.device_put(np.asarray(cases.Z))


def model_of(name):
    """The function of Algorithm 8, 9 or 10 of the tests' tokens."""
    if name in cases.ENCODER_DECODERS:
        return functools.partial(alg.ed_transformer, Z, X, z_length=cases.Z_LENGTHS)
    return functools.partial(alg.e_transformer if name in cases.ENCODERS else alg.d_transformer, X)


def context(name, b):
    """What else the oracle is told of sequence b."""
    return {"z": cases.Z[b], "z_length": cases.Z_LENGTHS[b]} if name in cases.ENCODER_DECODERS else {}


@functools.cache
def value_and_gradient(name, implementation):
    """Logarithms of P, and the gradient of a sum of them by θ."""
    config = cases.config_of(name)

    @jax.jit
    def compiled(theta):
        def objective(theta):
            log_P = jnp.log(model_of(name)(theta, implementation=implementation))
            return (log_P * jnp.sin(jnp.arange(log_P.size).reshape(log_P.shape))).sum(), log_P

        (_, log_P), gradient = jax.value_and_grad(objective, has_aux=True)(theta)
        return log_P, gradient

    return compiled(cases.theta_of(config))


@pytest.mark.sampled(6)
@pytest.mark.end_to_end
@every_row
def test_the_lines_are_the_oracles(name):
    config = cases.config_of(name)
    log_P, _ = value_and_gradient(name, "paper")
    for b, x in enumerate(cases.X):
        logits = cases.oracle_logits(x, cases.theta_of(config), config.variant, **context(name, b))
        expected = logits - np.log(np.exp(logits).sum(axis=0))
        np.testing.assert_allclose(log_P[:, b], expected, atol=1e-9)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@every_row
@pytest.mark.parametrize("implementation", ["dense", pytest.param("blockwise", marks=pytest.mark.slow)])
def test_every_implementation_is_as_printed(name, implementation):
    with small_blocks(5):
        (expected, by_hand), (log_P, gradient) = (value_and_gradient(name, i) for i in ("paper", implementation))
    np.testing.assert_allclose(log_P, expected, atol=1e-9)
    assert_trees_close(gradient, by_hand, 1e-9)


@pytest.mark.sampled(5)
@pytest.mark.end_to_end
@every_decoder
def test_a_cache_generates_the_tokens_of_algorithm_14(name):
    config = cases.config_of(name, l_max=23)
    theta = cases.theta_of(config)
    key = jax.random.key(3)
    tokens = generate(theta, cases.X, lengths=np.array([13, 9]), config=config, l_gen=7, tau=0.8, key=key)
    for r, length in enumerate((13, 9)):
        own = jax.random.fold_in(key, r)
        expected = alg.d_inference(X[r, :length], theta, l_gen=7, tau=0.8, key=own)
        assert tokens[r].tolist() == expected.tolist()


@pytest.mark.end_to_end
@every_encoder_decoder
def test_a_cache_generates_the_tokens_of_algorithm_15(name):
    config, key = cases.config_of(name), jax.random.key(3)
    theta = cases.theta_of(config)
    options = {"lengths": cases.Z_LENGTHS, "config": config, "l_max": 13, "tau": 0.8, "key": key}
    tokens, _, _ = translate(theta, cases.Z, **options)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(2))
    expected, _ = alg.ed_inference(Z, theta, tau=0.8, key=keys, l_max=13, z_length=cases.Z_LENGTHS)
    np.testing.assert_array_equal(tokens, expected)


MASKS = {
    "all ones": np.ones((13, 13), bool),
    "everything": alg.BIDIRECTIONAL,
    "a prefix": alg.prefix(6),
    "blocks": alg.blocks(jax.device_put(np.arange(13)) // 3),
    "padding": alg.padding(9),
    "of each": np.random.default_rng(2).random((2, 13, 13)) < 0.7,
}
WINDOW = alg.PAPER.but(attention=(Attention(), Attention(window=4)), norm=LayerNorm(epsilon=1e-3))
CHUNKS = WINDOW.but(attention=(Attention(), Attention(window=4, chunked=True)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", ["row0", "encoder0", "encoder_decoder0"])
@pytest.mark.parametrize("variant", [WINDOW, CHUNKS], ids=["window", "chunks"])
def test_a_window_narrows_a_mask_of_ones_own_to_both_sides_and_no_attention_to_a_context(name, variant, mask):
    theta, has_context = cases.theta_of(cases.config_of(name, variant=variant, tied=False)), "decoder" in name
    if has_context:
        P = alg.ed_transformer(X, X, theta, mask=mask, z_mask=mask)
    else:
        P = (alg.e_transformer if name == "encoder0" else alg.d_transformer)(X, theta, mask=mask)
    dense = np.broadcast_to(mask.dense(13, 13) if isinstance(mask, StructuralMask) else mask, (2, 13, 13))
    for b, x in enumerate(cases.X):
        context = {"z": x, "z_mask": dense[b]} if has_context else {}
        logits = cases.oracle_logits(x, theta, variant, mask=dense[b], **context)
        np.testing.assert_allclose(jnp.log(P[:, b]), logits - np.log(np.exp(logits).sum(axis=0)), atol=1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", ["auto", "paper", "blockwise"])
def test_chunks_and_temperatures_count_from_the_first_token_of_each_document(implementation):
    theta = cases.theta_of(cases.config_of("LLAMA4"))
    segments = np.array([[7] * 11 + [3] * 2, [4] * 4 + [9] * 9])
    with small_blocks(5):
        found = alg.d_logits(X, theta, segments=segments, implementation=implementation)
    for b, x in enumerate(cases.X):
        expected = cases.oracle_logits(x, theta, theta.variant, documents=segments[b].tolist())
        np.testing.assert_allclose(found[:, b], expected, atol=1e-9)


@every_row
def test_json_there_and_back(name):
    variant = cases.config_of(name).variant
    back = Record.from_json(json.loads(json.dumps(variant.to_json())))
    assert back == variant
    assert hash(back) == hash(variant)


def test_a_variant_names_what_it_changes_and_nothing_else():
    changed = {
        name
        for name in ("embedding", "norm", "attention", "mlp", "order", "unembedding")
        if getattr(alg.LLAMA, name) != getattr(alg.PAPER, name)
    }
    assert changed == {"embedding", "norm", "attention", "mlp"}
    assert set(alg.LLAMA.to_json()) - {"record"} == changed


def drawn(name):
    """A configuration of a record at sizes that no multiple of 8 divides, with heads that share no keys and values or
    all, and parameters with which half of the experts have the same score.
    """
    rng, variant = np.random.default_rng(zlib.crc32(f"{SEED} {name}".encode())), small(alg.VARIANTS[name])
    H = int(rng.choice([6] if any(getattr(line, "d_head", None) for line in variant.attentions) else [1, 3, 5, 6]))
    groups = [n for n in (1, H) if all(type(line).__name__ != "Latent" for line in variant.attentions)] or [1]
    d_e, d_attn, d_mid = (2 * int(rng.choice([3, 5, 7, 9])) for _ in range(3))
    is_part = any(getattr(line.positions, "share", 1) < 1 for line in variant.attentions)
    sizes = {"N_V": 2 * int(rng.integers(6, 12)) + 1, "l_max": 23, "d_e": d_e, "d_mlp": 2 * int(rng.integers(3, 9)) + 1}
    sizes |= {"H": H, "H_kv": H // int(rng.choice(groups)), "d_attn": d_attn * (1 + is_part), "d_mid": d_mid}
    L = 2 * int(rng.integers(0, 3)) + max(variant.cycle, variant.shared_layers) // 2 * 2 + 1
    L = variant.shared_layers if variant.shared_layers > 1 else 3 if variant.lenders else L
    number, sizes = ARCHITECTURES.get(name, 10), {**sizes, "variant": variant}
    if number == 8:
        config = alg.EDTransformerConfig(L_enc=L, L_dec=L, **sizes)
    else:
        config = (alg.ETransformerConfig if number == 9 else alg.DTransformerConfig)(L=L, **sizes)

    def tied(path, a):
        of_router = jax.tree_util.keystr(path).rpartition(".")[2] in ("W_r", "b_r", "b_choice")
        return a.at[:, a.shape[1] // 2 :].set(0) if of_router else a

    return config, jax.tree_util.tree_map_with_path(tied, random_theta(config))


@pytest.mark.end_to_end
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", alg.VARIANTS)
def test_a_record_is_the_oracles_at_drawn_sizes(name):
    config, theta = drawn(name)
    rng, algorithm = np.random.default_rng(1), ARCHITECTURES.get(name, 10)
    x, z = rng.integers(0, config.N_V, 13), rng.integers(0, config.N_V, 11)
    context = {"z": z} if algorithm == 8 else {}
    expected = cases.oracle_logits(x, theta, config.variant, **context)
    logits = {8: alg.ed_logits, 9: alg.e_logits, 10: alg.d_logits}[algorithm]
    found = logits(*map(jnp.asarray, (*context.values(), x)), theta)
    np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())
    if algorithm == 10:
        options = {"l_gen": 2, "tau": 0.0, "key": jax.random.key(0)}
        first, second = generate(theta, x[None], lengths=[len(x)], config=config, **options)[0]
        assert first == expected[:, -1].argmax()
        again = cases.oracle_logits([*x, first], theta, config.variant)
        assert second == again[:, -1].argmax()
