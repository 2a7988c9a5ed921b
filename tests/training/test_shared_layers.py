"""Runs whose layers share parameters: the settings, the files, and the model that comes back from them."""

import jax
import numpy as np
import pytest

from algorithms import ALBERT, init_d_transformer
from tests.training_cases import N_V, make_trainer, settings_for
from training.command_line.resolving import RunRequest, resolve
from training.interchange.starting import start_from
from training.loop.cost import step_flops
from training.runs.directory import RunDirectory
from training.runs.trained_model import load_run
from training.settings import SettingsError
from training.tasks.models import config_from_json, config_to_json, model_config


def config_for(task, **values):
    return model_config(settings_for(task, **values), N_V)


@pytest.mark.parametrize("task", ["d", "e", "ed", "classify"])
def test_any_task_shares_layers(task):
    L = {"L_enc": 4, "L_dec": 2} if task == "ed" else {"L": 4}
    config = config_for(task, shared_layers=2, **L)
    assert (config.shared_layers, config_from_json(task, config_to_json(config))) == (2, config)
    alone = config_for(task, **L)
    assert alone.shared_layers == 1
    assert step_flops(task, config, batch_size=4, l=7) == step_flops(task, alone, batch_size=4, l=7)


def test_albert_shares_all_layers_however_many():
    config = config_for("e", variant="ALBERT", L=3, d_in=4)
    assert (config.variant, (config.d_in, config.d_f, config.d_e)) == (ALBERT.but(shared_layers=3), (4, 4, 8))
    assert config_for("e", variant="ALBERT", L=6, shared_layers=2).shared_layers == 2


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"DTransformerConfig.L: expected a multiple of shared_layers = 2"):
        config_for("d", L=3, shared_layers=2)
    with pytest.raises(ValueError, match=r"variant.embedding.factored: expected False in Algorithms 8 and 10"):
        init_d_transformer(jax.random.key(0), config_for("d", variant="ALBERT", L=2))


@pytest.mark.end_to_end
@pytest.mark.parametrize("values", [{"variant": "ALBERT", "d_in": 5, "L": 2}, {"L": 4, "shared_layers": 2}])
def test_a_run_is_saved_and_trained_further(tmp_path, values):
    settings = settings_for("e", **values, steps=3, eval_every=3, checkpoint_every=3)
    with jax.enable_x64(False):
        make_trainer(tmp_path / "run", settings)[0].train()
        run = load_run(tmp_path / "run")
        further = settings_for("e", start_from=str(tmp_path / "run"))
        start = start_from(further).fitted(further)
    assert values["L"] == run.config.L
    assert len(run.theta.layers.attention.W_o) == values["L"] // run.config.shared_layers == values["L"] // 2
    chosen = {"start_from": start.name, "l_max": 7}
    given = RunRequest("e", RunDirectory(tmp_path / "new"), None, chosen, start=start)
    found = resolve(given)
    assert (found.shared_layers, found.variant) == (2, values.get("variant", "BERT"))
    np.testing.assert_array_equal(start.theta.layers.attention.W_o, run.theta.layers.attention.W_o)
    with pytest.raises(SettingsError, match=r"other sizes \(shared_layers 2 instead of 1\)"):
        resolve(given._replace(chosen={**chosen, "shared_layers": 1}))
