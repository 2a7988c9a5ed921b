"""Several devices train what one device trains."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.training_cases import make_trainer, settings_for
from training.mesh.sharding import Sharding

SHORT = {"batch_size": 16, "steps": 3, "learning_rate": 0.01, "dropout": 0.1}


pytestmark = pytest.mark.usefixtures("compile_once")


def losses(directory, task, sharding, **values):
    trainer, witness = make_trainer(directory, settings_for(task, sharding=sharding, **SHORT, **values))
    with jax.enable_x64(False):
        trainer.train()
    return [witness.losses[step] for step in range(1, 4)]


@pytest.mark.parametrize(
    ("task", "sharding", "values"),
    [
        ("d", "fsdp", {}),
        pytest.param("d", "data", {"accumulation_steps": 2}, marks=pytest.mark.slow),
        pytest.param("ed", "fsdp", {"accumulation_steps": 2}, marks=pytest.mark.slow),
    ],
)
def test_the_losses_are_those_of_one_device(tmp_path, task, sharding, values):
    expected = losses(tmp_path / "one", task, "none", **values)
    np.testing.assert_allclose(losses(tmp_path / "many", task, sharding, **values), expected, rtol=1e-5)


def test_what_lies_where():
    tree = {"even": np.zeros((3, 16, 8)), "odd": np.zeros((3, 5))}
    whole, split = (Sharding(kind, 8).of(tree) for kind in ("data", "fsdp"))
    assert (whole["even"].spec, whole["odd"].spec) == (P(), P())
    assert (split["even"].spec, split["odd"].spec) == (P(None, "data", None), P())
    placed = Sharding("fsdp", 8).place(tree)
    assert placed["even"].addressable_shards[0].data.shape == (3, 16 // jax.device_count(), 8)


@pytest.mark.parametrize(
    ("kind", "batch_size", "message"),
    [("data", 7, r"batch_size is 7, no multiple of the 8 devices of sharding data"), ("ring", 8, "no sharding 'ring'")],
)
def test_what_cannot_be_split_is_refused(kind, batch_size, message):
    with pytest.raises(ValueError, match=message):
        Sharding(kind, batch_size)
