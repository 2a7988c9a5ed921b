"""θ is a model: it holds its variant, which goes with it through every transformation, optimizer and file."""

import functools
import json
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import MLP, Attention, Embedding, RMSNorm, Rotary
from algorithms.machinery.record import Record
from tests import cases

pytestmark = pytest.mark.sampled(1, tests=5)

SIZES = {"N_V": 17, "l_max": 13, "H": 2, "d_e": 6, "d_mlp": 11, "d_attn": 4}
x, z = cases.random_tokens(7), cases.random_tokens(5, seed=1)
OWN = alg.PAPER.but(
    embedding=Embedding(positions=None, scaled=True),
    norm=RMSNorm(epsilon=0.1),
    attention=(Attention(positions=Rotary(base=20.0), window=3), Attention(positions=Rotary(base=20.0))),
    mlp=MLP(activation="silu", gated=True),
)
MODELS = {
    "d": (alg.DTransformerConfig(L=2, variant=OWN, **SIZES), functools.partial(alg.d_transformer, x)),
    "e": (alg.ETransformerConfig(L=1, variant=alg.BERT, **SIZES), functools.partial(alg.e_transformer, x)),
    "ed": (
        alg.EDTransformerConfig(L_enc=1, L_dec=1, variant=alg.VASWANI, **SIZES),
        functools.partial(alg.ed_transformer, z, x),
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def model(name, seed=0):
    """θ, its variant, and the transformer as a function of θ."""
    config, f = MODELS[name]
    return cases.random_theta(config, seed), config.variant, f


def rebuilt(variant):
    """An equal variant that is another object."""
    return Record.from_json(json.loads(json.dumps(variant.to_json())))


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
    assert jax.tree.map(np.zeros_like, theta).variant == variant
    with pytest.raises(ValueError, match="variant"):  # two models are not added up
        jax.tree.map(jnp.add, theta, theta._replace(variant=other))


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
    assert cases.compilations(lambda: f(theta._replace(variant=rebuilt(variant)))) == []


@every_model
def test_through_vmap_of_several_models_and_scan_over_them(name):
    (theta, variant, f), (other, _, _) = model(name), model(name, seed=1)
    both = jax.tree.map(lambda a, b: np.stack([a, b]), theta, other)
    expected = np.stack([f(theta), f(other)])
    cases.assert_close(jax.jit(jax.vmap(f))(both), expected, 1e-12)
    last, each = jax.lax.scan(lambda _, theta: (theta, f(theta)), theta, both)
    assert last.variant == both.variant == variant
    cases.assert_close(each, expected, 1e-12)


# Files and other processes


IN_ANOTHER_PROCESS = """
import pickle, sys
theta = pickle.load(sys.stdin.buffer)
from algorithms.machinery.record import Record
fresh = Record.from_json(theta.variant.to_json())
assert theta.variant == fresh
assert hash(theta.variant) == hash(fresh), "the hash of the other process was pickled"
sys.stdout.buffer.write(pickle.dumps((hash(fresh), theta)))
"""


@pytest.mark.end_to_end
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
