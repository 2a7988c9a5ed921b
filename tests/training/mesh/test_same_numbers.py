"""Whatever the mesh: several devices train what one device trains."""

import itertools
import math

import chex
import jax
import numpy as np
import pytest

from tests.training_cases import GATO_SETTINGS, make_trainer, settings_for
from training.loop.run_store import Store
from training.mesh.placement import Placement
from training.mesh.shape import AXES, written
from training.runs.checkpoints import read_checkpoint
from training.runs.named_arrays import flatten
from training.runs.trained_model import load_run

SIZES = {"H": 8, "d_e": 16, "d_mlp": 16, "l_max": 8, "batch_size": 16, "vocabulary_multiple": 8}
SETTINGS = SIZES | {"steps": 50, "learning_rate": 0.01, "dropout": 0.1, "eval_every": 25, "checkpoint_every": 50}

pytestmark = pytest.mark.usefixtures("compile_once")


def shapes(n):
    """Every mesh of n devices, written with the axes that have several."""
    for sizes in itertools.product((1, 2, 4, 8), repeat=len(AXES)):
        if math.prod(sizes) == n:
            yield written({axis: size for axis, size in zip(AXES, sizes, strict=True) if size > 1})


def outcome(directory, task, mesh, **values):
    """The losses, and what evaluations found."""
    trainer, witness = make_trainer(directory, settings_for(task, mesh=mesh, **{**SETTINGS, **values}))
    with jax.enable_x64(False):
        results = trainer.train()
    return list(witness.losses.values()), results


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    def lookup(task, values):
        key = task, tuple(sorted(values.items()))
        if key not in known:
            known[key] = outcome(tmp_path_factory.mktemp("one") / "run", task, "", **values)
        return known[key]

    known = {}
    return lookup


MESHES = ("replica=2,data=2,model=2", "data=2,context=2,model=2")
SLOW = [
    *((task, mesh, {}) for task in ("d", "e", "ed", "classify") for mesh in shapes(8)),
    *(("d", mesh, {"accumulation_steps": 4, "remat": "all"}) for mesh in MESHES),
    *(("d", mesh, {"optimizer": optimizer}) for mesh in MESHES for optimizer in ("muon", "adafactor", "lion")),
    *(("d", mesh, {"rows": "chunks", "ema_decay": 0.9, "label_smoothing": 0.1}) for mesh in MESHES),
    ("d", MESHES[1], {"unroll": True}),
    ("d", "data=8", {"patience": 1}),
    ("d", MESHES[1], {"L": 4, "shared_layers": 2}),
    ("e", MESHES[1], {"variant": "ALBERT", "L": 2, "d_in": 8}),
    *(("gato", mesh, GATO_SETTINGS | {"batch_size": 16, "steps": 6}) for mesh in (*MESHES, "data=8", "model=8")),
]


@pytest.mark.parametrize(
    ("task", "mesh", "values"),
    [
        pytest.param("d", MESHES[1], {"steps": 4, "accumulation_steps": 2}, marks=pytest.mark.end_to_end),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_losses_and_evaluations_are_those_of_one_device(tmp_path, expected, task, mesh, values):
    losses, results = outcome(tmp_path / "many", task, mesh, **values)
    of_one, results_of_one = expected(task, values)
    np.testing.assert_allclose(losses, of_one, rtol=2e-5, atol=1e-5)
    assert results == pytest.approx(results_of_one, rel=2e-5, abs=1e-5)


@pytest.mark.end_to_end
def test_a_checkpoint_opens_in_another_mesh_with_the_same_bits(tmp_path, monkeypatch):
    """Parameters and optimizer state; and so for whoever reads the run."""
    states = []
    monkeypatch.setattr(Store, "save", lambda *a, of=Store.save: states.append(a[1]) or of(*a))
    values = SETTINGS | {"steps": 4, "accumulation_steps": 2}
    with jax.enable_x64(False):
        trainer, witness = make_trainer(tmp_path, settings_for("d", **values, mesh=MESHES[1]))
        trainer.train()
        state = states[-1]
        expected = flatten(jax.device_get(state))
        assert state.params.W_e.sharding.shard_shape((16, 24)) == (8, 12)
        assert jax.typeof(trainer.plan.gathered(state).W_e).sharding.mesh.empty  # a sample is made on one device
        items = {"params": state.params, "state": (state.opt_state, state.healthy)}
        for mesh in ("replica=2,data=4", "data=8", ""):
            where = Placement(mesh).placed(items)
            found = read_checkpoint(tmp_path / "checkpoints", 4, where).trees
            assert jax.tree.map(lambda a: a.sharding, found) == jax.tree.map(lambda a: a.sharding, where)
            found = flatten(jax.device_get(state._replace(params=found["params"], opt_state=found["state"][0])))
            chex.assert_trees_all_equal(found, expected)
    (tmp_path / "parameters.safetensors").unlink()
    theta = load_run(tmp_path).theta
    assert theta.W_e.shape == (16, 17)
    assert witness.facts.parameters == sum(array.size for array in jax.tree.leaves(theta))  # without the padding
    np.testing.assert_array_equal(theta.W_e, expected["params.W_e"][:, :17])
