"""Serialized programs that take θ as an argument, with its variant, and their use in a process without this library."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import GEMMA2, PAPER, d_token_losses, d_transformer, e_transformer, ed_transformer
from algorithms.lines import GatedDelta
from algorithms.machinery.record import Record
from tests.algorithms.test_records import subclass
from tests.cases import ED, D, E, random_theta
from tests.own_lines.retention import HYBRID

pytest.importorskip("flatbuffers")

x, z = jax.device_put(np.array([3, 0, 1, 2], jnp.int32)), jax.device_put(np.array([2, 5, 1], jnp.int32))
DELTA = HYBRID.but(attention=(GatedDelta(n=2, n_keys=2, d_key=3, d_value=5), *HYBRID.attention[1:]))


def descended(x, theta):
    """Parameters after a step of gradient descent."""
    gradient = jax.grad(lambda theta: d_token_losses(x, theta).sum())(theta)
    return jax.tree.map(lambda a, g: a - 0.1 * g, theta, gradient)


MODELS = {
    "d": (d_transformer, (x,), D),
    "d, an update of recurrences and a custom mixer": (
        descended,
        (x,),
        dataclasses.replace(D, L=4, d_attn=4, variant=DELTA),
    ),
    "d, another variant": (d_transformer, (x,), dataclasses.replace(D, d_attn=4, variant=GEMMA2)),
    "e": (e_transformer, (x,), E),
    "ed": (ed_transformer, (z, x), ED),
}


def exported(f, *arguments):
    with algorithms.for_platform("cpu"):
        return jax.export.export(jax.jit(f), platforms=("cpu",))(*arguments).serialize()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_program_takes_theta(name):
    f, tokens, config = MODELS[name]
    theta = random_theta(config)
    program = jax.export.deserialize(exported(f, *tokens, theta))
    expected = jax.jit(f)(*tokens, theta)
    rebuilt = theta._replace(variant=Record.from_json(config.variant.to_json()))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), program.call(*tokens, rebuilt), expected)
    restored = jax.tree.unflatten(program.in_tree, [*tokens, *jax.tree.leaves(theta)])[0][-1]
    assert restored.variant == config.variant
    with pytest.raises(ValueError, match="tree structure"):
        program.call(*tokens, theta._replace(variant=PAPER.but(norm=algorithms.lines.LayerNorm(epsilon=0.5))))


def test_all_parameters_are_serializable():
    for name in dir(algorithms):
        kind = getattr(algorithms, name)
        if hasattr(kind, "_fields") and name.endswith("Params"):
            tree = kind(**dict.fromkeys(kind._fields, x))
            again = jax.export.deserialize(exported(lambda t: t, tree))
            assert jax.tree.structure(((tree,), {})) == again.in_tree, name


def test_a_variant_with_a_class_of_a_user(monkeypatch):
    monkeypatch.setattr(Record, "_kinds", dict(Record._kinds))
    mine = PAPER.but(mlp=subclass("study")(biases=False))
    theta = random_theta(D)._replace(variant=mine)
    again = jax.export.deserialize(exported(lambda t: t.W_e, theta))
    assert jax.tree.unflatten(again.in_tree, jax.tree.leaves(theta))[0][0].variant == mine


LOADED = """
import json, sys
sys.modules.update(dict.fromkeys(("algorithms", "training", "jaxtyping")))  # cannot be imported
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
program = jax.export.deserialize(bytearray(open("program", "rb").read()))
leaves = [np.load(f"{i}.npy") for i in range(program.in_tree.num_leaves - 1)]
print(json.dumps(np.asarray(program.call(leaves, np.array([3, 0, 1, 2], np.int32))).tolist()))
"""


@pytest.mark.end_to_end
def test_a_program_of_the_leaves_needs_no_library(tmp_path):
    theta = random_theta(MODELS["d, another variant"][2])
    leaves, tree = jax.tree.flatten(theta)
    program = exported(lambda leaves, x: d_transformer(x, jax.tree.unflatten(tree, leaves)), leaves, x)
    (tmp_path / "program").write_bytes(program)
    for i, leaf in enumerate(leaves):
        np.save(tmp_path / f"{i}.npy", leaf)
    found = subprocess.run([sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    np.testing.assert_allclose(json.loads(found.stdout), d_transformer(x, theta), rtol=1e-12)
