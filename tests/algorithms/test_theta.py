"""θ is a model: it holds its variant, which goes with it through every transformation, optimizer and file."""

import functools
import json
import os
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from algorithms import (
    BERT,
    GPT2,
    LLAMA,
    PAPER,
    VASWANI,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    d_hidden_state,
    d_transformer,
    e_transformer,
    ed_transformer,
    init_d_transformer,
    init_e_transformer,
    init_ed_transformer,
)
from algorithms.lines import MLP, Attention, Embedding, LayerNorm, RMSNorm, Rotary
from algorithms.machinery.record import Record
from tests import cases, family_cases
from training.crosscheck import oracle

SIZES = {"N_V": 17, "l_max": 13, "H": 2, "d_e": 6, "d_mlp": 11, "d_attn": 4}
x, z = cases.random_tokens(7), cases.random_tokens(5, seed=1)
OWN = PAPER.but(
    embedding=Embedding(positions=None, scaled=True),
    norm=RMSNorm(epsilon=0.1),
    attention=(Attention(positions=Rotary(base=20.0), window=3), Attention(positions=Rotary(base=20.0))),
    mlp=MLP(activation="silu", gated=True),
)
MODELS = {
    "d": (DTransformerConfig(L=2, variant=OWN, **SIZES), init_d_transformer, functools.partial(d_transformer, x)),
    "e": (ETransformerConfig(L=1, variant=BERT, **SIZES), init_e_transformer, functools.partial(e_transformer, x)),
    "ed": (
        EDTransformerConfig(L_enc=1, L_dec=1, variant=VASWANI, **SIZES),
        init_ed_transformer,
        functools.partial(ed_transformer, z, x),
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def model(name, seed=0):
    """θ, its variant, and the transformer as a function of θ."""
    config, _, f = MODELS[name]
    return cases.random_theta(config, seed), config.variant, f


def rebuilt(variant):
    """An equal variant that is another object."""
    return Record.from_json(json.loads(json.dumps(variant.to_json())))


def loss_of(f):
    return lambda theta: jnp.sin(f(theta)).sum()


# The model that θ is


@every_model
def test_initialization_gives_theta_its_variant(name):
    config, init, _ = MODELS[name]
    assert init(jax.random.key(0), config).variant == config.variant


def test_theta_is_the_paper_unless_it_says_otherwise():
    for params in (type(model(name)[0]) for name in MODELS):
        assert params._field_defaults["variant"] is PAPER


def test_a_transformer_computes_the_model_that_theta_is():
    """The same arrays with two variants: each by the lines of its own, by the oracle."""
    theta = cases.random_theta(DTransformerConfig(L=2, **SIZES))
    P = d_transformer(x, theta)
    cases.assert_close(P, oracle.d_transformer(x, oracle.unstack(theta)))
    other = PAPER.but(embedding=Embedding(scaled=True), norm=LayerNorm(epsilon=0.1), mlp=MLP(activation="relu"))
    of_other = d_transformer(x, theta._replace(variant=other))
    logits = family_cases.oracle_logits(x, theta, other)
    cases.assert_close(of_other, np.exp(logits) / np.exp(logits).sum(axis=0))
    assert np.abs(P - of_other).max() > 1e-3


MISFITS = [
    ("d", GPT2, "theta.W_p: expected an array [d_e, l_max] in GPT2, got None"),
    (
        "d",
        OWN.but(norm=LayerNorm()),
        "theta.layers.norm1.beta: expected an array [L, d_e] in PAPER.but(",
    ),
    ("d", OWN.but(mlp=MLP()), "theta.layers.mlp.W_gate: expected None in PAPER.but("),
    ("d", OWN.but(mlp=None), "theta.layers.mlp: expected None in PAPER.but("),
    ("e", PAPER, "theta.embedding_norm: expected None in PAPER, got parameters"),
    ("ed", PAPER, "theta.W_p: expected an array [d_e, l_max] in PAPER, got None"),
    (
        "ed",
        LLAMA,
        "theta.encoder.attention.heads.b_q: expected None in LLAMA, got parameters",
    ),
]


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(("name", "variant", "message"), MISFITS)
def test_a_variant_that_does_not_fit_is_refused_by_the_path_of_the_parameter(name, variant, message):
    theta, _, f = model(name)
    theta, advice = theta._replace(variant=variant), "; use the variant that these parameters were made for"
    for call in (f, jax.jit(f), jax.grad(loss_of(f)), functools.partial(jax.eval_shape, f)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}.*{advice}"):
            call(theta)


# A node without leaves


@every_model
def test_the_variant_has_no_leaves_and_is_part_of_the_structure(name):
    theta, variant, _ = model(name)
    other = variant.but(norm=variant.norm.but(epsilon=0.5))
    leaves, structure = jax.tree.flatten(theta)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert structure.unflatten(leaves).variant is variant
    assert jax.tree.structure(theta._replace(variant=rebuilt(variant))) == structure
    assert jax.tree.structure(theta._replace(variant=other)) != structure
    assert jax.tree.map(jnp.zeros_like, theta).variant == variant
    with pytest.raises(ValueError, match="variant"):  # two models are not added up
        jax.tree.map(jnp.add, theta, theta._replace(variant=other))


@every_model
def test_shapes_alone_have_it_too(name):
    config, init, f = MODELS[name]
    shapes = jax.eval_shape(lambda key: init(key, config), jax.random.key(0))
    assert shapes.variant == config.variant
    assert jax.eval_shape(f, shapes).shape == (17, 7)


@every_model
def test_through_jit_it_compiles_once_for_equal_variants(name):
    theta, variant, f = model(name)
    traced = []

    @jax.jit
    def program(theta):
        traced.append(theta.variant)
        return f(theta), jax.tree.map(lambda a: 2 * a, theta)

    P, doubled = program(theta)
    assert doubled.variant == variant
    cases.assert_close(P, f(theta), 1e-12)
    program(theta._replace(variant=rebuilt(variant)))
    assert traced == [variant]
    wider = variant.but(norm=variant.norm.but(epsilon=0.5))
    cases.assert_close(program(theta._replace(variant=wider))[0], f(theta._replace(variant=wider)), 1e-12)
    assert traced == [variant, wider]
    assert np.abs(program(theta._replace(variant=wider))[0] - P).max() > 1e-4


@every_model
def test_through_grad(name):
    theta, variant, f = model(name)
    loss = loss_of(f)
    gradient = jax.jit(jax.grad(loss))(theta)
    assert gradient.variant == variant
    direction = cases.random_like(theta, seed=1)
    ends = (loss(jax.tree.map(lambda a, d, s=s: a + s * 1e-6 * d, theta, direction)) for s in (1, -1))
    along = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
    np.testing.assert_allclose(along, (next(ends) - next(ends)) / 2e-6, rtol=1e-6)


@every_model
def test_through_vmap_of_several_models_and_scan_over_them(name):
    (theta, variant, f), (other, _, _) = model(name), model(name, seed=1)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), theta, other)
    expected = jnp.stack([f(theta), f(other)])
    cases.assert_close(jax.jit(jax.vmap(f))(both), expected, 1e-12)
    last, each = jax.lax.scan(lambda _, theta: (theta, f(theta)), theta, both)
    assert last.variant == both.variant == variant
    cases.assert_close(each, expected, 1e-12)


@every_model
def test_through_a_scan_that_trains_with_optax(name):
    """AdamW's steps in a loop are those for the arrays alone, without the variant."""
    theta, variant, f = model(name)
    optimizer, leaves = optax.adamw(0.01, weight_decay=0.1), jax.tree.leaves(theta)

    def step(state, _):
        theta, moments = state
        update, moments = optimizer.update(jax.grad(loss_of(f))(theta), moments, theta)
        return (optax.apply_updates(theta, update), moments), None

    (trained, moments), _ = jax.jit(lambda state: jax.lax.scan(step, state, length=2))((theta, optimizer.init(theta)))
    assert trained.variant == moments[0].mu.variant == variant

    gradient = jax.jit(jax.grad(lambda leaves: loss_of(f)(jax.tree.structure(theta).unflatten(leaves))))
    state = optimizer.init(leaves)
    for _ in range(2):
        update, state = optimizer.update(gradient(leaves), state, leaves)
        leaves = optax.apply_updates(leaves, update)
    for found, expected in zip(jax.tree.leaves(trained), leaves, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


# Files and other processes


@every_model
def test_through_orbax(name, tmp_path):
    theta, variant, f = model(name)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theta", theta)
        checkpointer.wait_until_finished()
        like = jax.tree.map(jnp.zeros_like, theta)._replace(variant=rebuilt(variant))
        restored = checkpointer.restore(tmp_path / "theta", like)
    assert restored.variant == variant
    np.testing.assert_array_equal(f(restored), f(theta))


IN_ANOTHER_PROCESS = """
import pickle, sys
theta = pickle.load(sys.stdin.buffer)
from algorithms.machinery.record import Record
fresh = Record.from_json(theta.variant.to_json())
assert theta.variant == fresh
assert hash(theta.variant) == hash(fresh), "the hash of the other process was pickled"
sys.stdout.buffer.write(pickle.dumps((hash(fresh), theta)))
"""


def test_through_pickle_to_another_process_and_back():
    """Strings have other hashes there, so the hash that a variant keeps must not come along."""
    theta, variant, f = model("d")
    hash(variant)
    assert "_hash" in vars(variant)
    seed = "8" if os.environ.get("PYTHONHASHSEED") == "7" else "7"
    run = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        input=pickle.dumps(theta),
        env=os.environ | {"JAX_ENABLE_X64": "1", "PYTHONHASHSEED": seed},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    there, back = pickle.loads(run.stdout)
    assert there != hash(variant)  # the other process has other hashes, so that this test can fail
    assert back.variant == variant
    assert hash(back.variant) == hash(variant)
    assert jax.tree.structure(back) == jax.tree.structure(theta)
    np.testing.assert_array_equal(f(back), f(theta))


@every_model
def test_an_exported_program_knows_its_variant_and_refuses_another(name):
    theta, variant, f = model(name)
    exported = jax.export.export(jax.jit(f))(theta)
    assert exported.in_tree == jax.tree.structure(((theta,), {}))
    cases.assert_close(exported.call(theta._replace(variant=rebuilt(variant))), f(theta), 1e-12)
    with pytest.raises(ValueError, match="tree"):
        exported.call(theta._replace(variant=variant.but(norm=variant.norm.but(epsilon=0.5))))


def test_an_exported_program_in_a_file_knows_it_too():
    pytest.importorskip("flatbuffers")
    theta, variant, f = model("d")
    written = jax.export.export(jax.jit(f))(theta).serialize()
    read = jax.export.deserialize(written)
    assert read.in_tree == jax.tree.structure(((theta,), {}))
    cases.assert_close(read.call(theta), f(theta), 1e-12)
    with pytest.raises(ValueError, match="tree"):
        read.call(theta._replace(variant=variant.but(norm=variant.norm.but(epsilon=0.5))))


def test_columns_of_embeddings_have_the_lines_of_theta_as_well():
    """The variant is θ's wherever a pass begins."""
    theta, _, _ = model("d")
    X = np.sqrt(6) * np.asarray(theta.W_e)[:, np.asarray(x)]  # scaled, without positions
    cases.assert_close(d_hidden_state(jnp.asarray(X), theta), d_hidden_state(x, theta))
