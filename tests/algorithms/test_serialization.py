"""Records in files, where a class of a user's never stands in for one of ours, nor the reverse; and serialized programs
that take θ as an argument, with its variant, and their use in a process without this library.
"""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import GEMMA2, GPT2, PAPER, d_token_losses, d_transformer, e_transformer, ed_transformer, lines
from algorithms.machinery.record import Record
from tests.cases import ED, D, E, random_theta
from tests.own_lines.retention import HYBRID
from training.tasks.models import config_from_json, config_to_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(lines.MLP):
    """A class of a user's, with the name of one of ours."""


def read_again(variant):
    written = json.loads(json.dumps(config_to_json(dataclasses.replace(D, variant=variant))))
    return config_from_json("d", written).variant


def test_a_class_of_the_same_name_changes_no_run_of_ours():
    assert type(read_again(GPT2).mlp) is lines.MLP
    assert type(Record.from_json({"record": "MLP"})) is lines.MLP


def test_a_class_of_a_user_is_read_as_itself():
    mine = PAPER.but(mlp=MLP(biases=False))
    assert read_again(mine) == mine != PAPER.but(mlp=lines.MLP(biases=False))
    assert type(read_again(mine).mlp) is MLP


def subclass(module):
    kind = type("Study", (lines.MLP,), {"__module__": module, "__qualname__": "Study"})
    return dataclasses.dataclass(frozen=True, kw_only=True)(kind)


@pytest.fixture
def no_other_classes(monkeypatch):
    monkeypatch.setattr(Record, "_kinds", dict(Record._kinds))


@pytest.mark.usefixtures("no_other_classes")
def test_files_without_modules_or_of_a_script_mean_the_only_class_of_this_name():
    first = subclass("first")
    for name in ("Study", "__main__:Study", "first:Study"):
        assert type(Record.from_json({"record": name, "biases": False})) is first
    second = subclass("second")
    assert type(Record.from_json({"record": "second:Study"})) is second
    assert type(Record.from_json({"record": "first:Study"})) is first
    for name in ("Study", "__main__:Study", "third:Study"):
        with pytest.raises(ValueError, match=r"expected one of .*first:Study.*import the module of a custom class"):
            Record.from_json({"record": name})


@pytest.mark.usefixtures("no_other_classes")
def test_a_class_that_is_defined_again_is_the_last_one():
    subclass("cell")
    again = subclass("cell")
    assert type(Record.from_json(again().to_json())) is again


# Serialized programs.

x, z = jax.device_put(np.array([3, 0, 1, 2], jnp.int32)), jax.device_put(np.array([2, 5, 1], jnp.int32))
MODELS = {
    "d": (d_transformer, (x,), D),
    "d, another variant": (d_transformer, (x,), dataclasses.replace(D, d_attn=4, variant=GEMMA2)),
    "e": (e_transformer, (x,), E),
    "ed": (ed_transformer, (z, x), ED),
}


def exported(f, *arguments):
    pytest.importorskip("flatbuffers")
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
    np.testing.assert_allclose(program.call(*tokens, rebuilt), expected, rtol=1e-12)
    restored = jax.tree.unflatten(program.in_tree, [*tokens, *jax.tree.leaves(theta)])[0][-1]
    assert restored.variant == config.variant
    with pytest.raises(ValueError, match="tree structure"):
        program.call(*tokens, theta._replace(variant=PAPER.but(norm=lines.LayerNorm(epsilon=0.5))))


def test_all_parameters_are_serializable():
    for name in dir(algorithms):
        kind = getattr(algorithms, name)
        if hasattr(kind, "_fields") and name.endswith("Params"):
            tree = kind(**dict.fromkeys(kind._fields, x))
            again = jax.export.deserialize(exported(lambda t: t, tree))
            assert jax.tree.structure(((tree,), {})) == again.in_tree, name


@pytest.mark.usefixtures("no_other_classes")
def test_a_variant_with_a_class_of_a_user():
    mine = PAPER.but(mlp=subclass("study")(biases=False))
    theta = random_theta(D)._replace(variant=mine)
    again = jax.export.deserialize(exported(lambda t: t.W_e, theta))
    assert jax.tree.unflatten(again.in_tree, jax.tree.leaves(theta))[0][0].variant == mine


def of_leaves(f, theta):
    """A function of tokens and θ as one of θ's arrays, which need no class of theirs; and these arrays."""
    leaves, tree = jax.tree.flatten(theta)
    return (lambda leaves, x: f(x, jax.tree.unflatten(tree, leaves))), leaves


@pytest.mark.end_to_end
def test_a_program_of_the_leaves_updates_recurrences_and_a_custom_mixer():
    delta = lines.GatedDelta(n=2, n_keys=2, d_key=3, d_value=5)
    variant = HYBRID.but(attention=(delta, *HYBRID.attention[1:]))

    def descended(x, theta):
        gradient = jax.grad(lambda theta: d_token_losses(x, theta).sum())(theta)
        return jax.tree.leaves(jax.tree.map(lambda a, g: a - 0.1 * g, theta, gradient))

    f, leaves = of_leaves(descended, random_theta(dataclasses.replace(D, L=4, d_attn=4, variant=variant)))
    found = jax.export.deserialize(exported(f, leaves, x)).call(leaves, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), found, jax.jit(f)(leaves, x))


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
    f, leaves = of_leaves(d_transformer, theta)
    (tmp_path / "program").write_bytes(exported(f, leaves, x))
    for i, leaf in enumerate(leaves):
        np.save(tmp_path / f"{i}.npy", leaf)
    found = subprocess.run([sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    np.testing.assert_allclose(json.loads(found.stdout), d_transformer(x, theta), rtol=1e-12)
