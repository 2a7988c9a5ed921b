"""Runs from before layers that differ were stacks of their own."""

import jax
import numpy as np
import pytest

from algorithms import DEEPSEEK, DTransformerConfig
from algorithms.lines import MLP
from algorithms.model.theta import places
from tests.cases import random_theta
from training.runs.checkpoints import CheckpointError, Checkpoints, read_checkpoint
from training.runs.directory import RunDirectory, RunError
from training.runs.named_arrays import flatten
from training.runs.trained_model import _read_parameters
from training.tasks.own_lines import variant_from_json

N, L = 2, 5
ATTENTION = DEEPSEEK.attention.but(d_c=6, d_r=4, d_q=3)
VARIANT = DEEPSEEK.but(
    attention=ATTENTION,
    mlp=DEEPSEEK.mlp.but(n=4, k=2, groups=1, chosen_groups=1),
    first=(MLP(activation="silu", gated=True, biases=False, d_mlp=7),) * N,
)
THETA = random_theta(DTransformerConfig(N_V=11, l_max=8, L=L, H=2, d_e=6, d_mlp=5, variant=VARIANT))
SHAPES = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), THETA)


def as_it_was(theta):
    """The arrays by the names and in the stacks of then, from those of single layers."""
    now, found = flatten(theta), {name: a for name, a in flatten(theta).items() if not name.startswith("layers.")}
    for name in dict.fromkeys(name.split(".", 2)[2] for name in now if name.startswith("layers.")):
        at = [(l, f"layers.{stack}.{name}", row) for l, (stack, row) in enumerate(places(VARIANT, L))]
        rows = {l: now[of][row] for l, of, row in at if of in now}
        if name.startswith("mlp."):
            first, rest = ([rows[l] for l in rows if (l < N) == is_first] for is_first in (True, False))
            found |= {f"first_{name}": np.stack(first)} if first else {}
            found |= {f"layers.{name}": np.stack(rest)} if rest else {}
        else:
            found[f"layers.{name}"] = np.stack([rows[l] for l in range(L)])
    return found


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_checkpoints_of_then_and_now_are_read(tmp_path):
    moments = jax.tree.map(lambda a: a + 1, THETA)
    trees = {"params": as_it_was(THETA), "opt": {f"0.mu.{name}": a for name, a in as_it_was(moments).items()}}
    with Checkpoints(tmp_path / "then", max_to_keep=1) as checkpoints:
        checkpoints.save(3, trees, {})
    restored = read_checkpoint(tmp_path / "then", 3, {"params": SHAPES, "opt": [{"mu": SHAPES}]}).trees
    assert_equal(restored["params"], THETA)
    assert_equal(restored["opt"], [{"mu": moments}])
    with Checkpoints(tmp_path / "now", max_to_keep=1) as checkpoints:
        checkpoints.save(3, {"params": THETA}, {})
    assert_equal(read_checkpoint(tmp_path / "now", 3, {"params": SHAPES}).trees["params"], THETA)


def test_the_variant_of_then_is_read():
    first = {"record": "First", "n": N, "mlp": VARIANT.first[0].but(d_mlp=None).to_json(), "d_mlp": 7}
    assert variant_from_json(VARIANT.to_json() | {"first": first}) == VARIANT


def test_a_checkpoint_of_another_model_is_not_taken_for_one_of_then(tmp_path):
    with Checkpoints(tmp_path, max_to_keep=1) as checkpoints:
        checkpoints.save(3, {"params": {name: a for name, a in as_it_was(THETA).items() if "norm1" not in name}}, {})
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path, 3, {"params": SHAPES})


def test_files_of_parameters_of_then_are_read(tmp_path):
    files = RunDirectory(tmp_path)
    files.save_parameters(as_it_was(THETA))
    assert_equal(_read_parameters(files.parameters, SHAPES, None, None), THETA)
    files.save_parameters({name: a for name, a in as_it_was(THETA).items() if name != "W_e"})
    with pytest.raises(RunError, match="its arrays are not those of the model"):
        _read_parameters(files.parameters, SHAPES, None, None)
