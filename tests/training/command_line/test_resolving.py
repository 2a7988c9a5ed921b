"""Where a setting comes from: each place is asked before the next."""

import argparse
import types
from typing import Any

import pytest

from training.command_line.resolving import RunRequest, resolve, run_request
from training.runs.directory import RunDirectory
from training.settings import SettingsError
from training.tasks import objectives, settings_from

NOTHING = RunRequest("d", RunDirectory("nowhere"), None, {})


def test_precedence_is_as_its_docstring_says():
    began = settings_from({"seed": 1, "L": 1, "H": 1, "steps": 10, "warmup": 1}, task="d")
    given = NOTHING._replace(began=began, chosen={"seed": 4, "l_max": 16})
    found = resolve(given)
    assert (found.seed, found.L, found.H, found.steps, found.l_max) == (4, 1, 1, 10, 16)
    assert found.warmup == 1  # the run's own, although it depends on the steps
    assert (found.batch_size, found.d_e) == (8, 128)  # the task's default, and the common one
    counted = resolve(given._replace(epochs=2.0, n_examples=40))
    assert counted.steps == 10
    assert resolve(given._replace(epochs=2.0, n_examples=41)).steps == 11


def test_flags_come_before_the_file_and_that_before_the_preset(tmp_path):
    (tmp_path / "settings.json").write_text('{"batch_size": 3, "steps": 7}')
    own = {"task": "d", "run": tmp_path / "run", "preset": "demo", "config": tmp_path / "settings.json", "lines": []}
    found = resolve(run_request(argparse.Namespace(**own, epochs=None, steps=5)))
    assert (found.steps, found.batch_size, found.d_mlp, found.warmup) == (5, 3, 344, 1)
    with pytest.raises(SettingsError, match="--steps and --epochs exclude each other"):
        run_request(argparse.Namespace(**own, epochs=1.0, steps=5))


def test_defaults_depend_on_what_is_chosen():
    found = resolve(NOTHING._replace(chosen={"optimizer": "sgd", "steps": 50}))
    assert (found.learning_rate, found.weight_decay, found.warmup) == (0.1, 0.0, 5)
    counted = resolve(NOTHING._replace(epochs=1.0, n_examples=800))
    assert (counted.steps, counted.warmup) == (100, 10)


def test_the_models_sizes_come_first_but_for_its_l_max():
    sizes = {"L": 5, "H": 2, "d_e": 12, "l_max": 64, "variant": "LLAMA"}
    other: Any = types.SimpleNamespace(name="whole/other", sizes=sizes)
    given = NOTHING._replace(chosen={"start_from": "other", "l_max": 32}, start=other)
    found = resolve(given)
    assert {name: getattr(found, name) for name in sizes} == sizes | {"l_max": 32}
    assert found.start_from == "whole/other"
    with pytest.raises(SettingsError, match=r"has other sizes \(H 2 instead of 4; L 5 instead of 1\): leave them out"):
        resolve(given._replace(chosen={**given.chosen, "L": 1, "H": 4}))
    with pytest.raises(SettingsError, match="l_max is 65, but whole/other reads at most 64 tokens"):
        resolve(given._replace(chosen={"start_from": "other", "l_max": 65}))


def test_the_vocabulary_is_checked_once_it_is_known():
    given = NOTHING._replace(chosen={"mesh": "model=2"})
    assert resolve(given._replace(N_V=4098)) == resolve(given)
    with pytest.raises(ValueError, match="N_V is 4097, which model=2 does not divide: give vocabulary_multiple 2"):
        resolve(given._replace(N_V=4097))
    assert resolve(given._replace(N_V=4097, chosen={"mesh": "model=2", "vocabulary_multiple": 2})).mesh == "model=2"


@pytest.mark.parametrize(
    ("platform", "capability", "dtype"),
    [
        ("cpu", None, "float32"),
        ("tpu", None, "bfloat16"),
        ("gpu", "7.5", "float32"),
        ("gpu", "8.0", "bfloat16"),
        ("gpu", "12.0", "bfloat16"),
        ("gpu", "gfx942", "bfloat16"),
    ],
)
def test_auto_is_bfloat16_where_the_device_has_it(platform, capability, dtype, monkeypatch):
    device = types.SimpleNamespace(platform=platform, **({"compute_capability": capability} if capability else {}))
    monkeypatch.setattr(objectives.jax, "devices", lambda: [device])
    assert objectives.resolved("auto") == dtype
    assert objectives.resolved("float16") == "float16"
