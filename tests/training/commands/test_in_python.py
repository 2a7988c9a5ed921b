"""`training.train` does what the command line does."""

import re
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import chex
import numpy as np
import pytest

import training
from training import commands
from training.commands import in_python
from training.runs.directory import RunDirectory
from training.runs.trained_model import load_run

TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(60))
SETTINGS = {
    "steps": 4, "batch_size": 4, "l_max": 16, "d_e": 8, "H": 2, "d_mlp": 8, "L": 1, "tokenizer": "bytes",
    "eval_batches": 1, "peak": 1e12, "tensorboard": False, "checkpoint_every": 2,
}  # fmt: skip


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data.txt").write_text(TEXT)
    return tmp_path / "data.txt"


@pytest.mark.thorough
def test_it_trains_the_parameters_that_the_command_trains(tmp_path, data, capsys):
    values = SETTINGS | {"steps": np.int64(4), "data": data}
    run = training.train("d", tmp_path / "run", cache=tmp_path, **values)
    printed = capsys.readouterr().out
    assert f"The run is in {tmp_path / 'run'}" in printed
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items() if name != "tensorboard"]
    arguments = ["d", "--run", tmp_path / "other", "--data", data, "--cache", tmp_path, "--no-tensorboard", *flags]
    assert commands.train_main([str(argument) for argument in arguments]) == 0
    chex.assert_trees_all_equal(run.theta, load_run(tmp_path / "other").theta)
    again = training.train("d", tmp_path / "run", cache=tmp_path, data=[str(data)], **SETTINGS | {"steps": 4})
    np.testing.assert_array_equal(again.theta.W_e, run.theta.W_e)  # complete: nothing is left to train


@pytest.mark.thorough
def test_an_interrupted_training_is_resumed(tmp_path, data, monkeypatch):
    def interrupted(*_):
        raise in_python.Interrupted(130)

    with monkeypatch.context() as patch:
        patch.setattr(in_python, "train_by", interrupted)
        with pytest.raises(KeyboardInterrupt, match="call train again to resume it"):
            training.train("d", tmp_path / "run", data=data, cache=tmp_path, quiet=True, **SETTINGS)
    options = {"data": data, "cache": tmp_path, "quiet": True, **SETTINGS}
    with ThreadPoolExecutor(1) as pool:  # signals arrive in the main thread alone
        run = pool.submit(training.train, "d", tmp_path / "run", **options).result()
    assert run.task == "d"
    assert RunDirectory(tmp_path / "run").description().settings.data == (str(data),)


@pytest.mark.end_to_end
def test_a_start_without_wandb_records_nothing(tmp_path, data, monkeypatch):
    def refused(directory, settings):
        assert settings["wandb"]
        (directory / "wandb").mkdir(exist_ok=True)
        raise RuntimeError("Weights & Biases: no login")

    options = {"data": data, "cache": tmp_path, "quiet": True, **SETTINGS}
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match=r"wandb is not installed: pip install .*\[wandb\]"):
        training.train("d", tmp_path / "run", wandb=True, **options)
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    monkeypatch.setattr(commands.train, "wandb_writer", refused)
    with pytest.raises(RuntimeError, match="no login"):
        training.train("d", tmp_path / "run", wandb=True, **options)
    files = RunDirectory(tmp_path / "run")
    assert [*files.path.iterdir()] == [files.path / "wandb"]
    for steps in (2, 4):  # it begins without it, and a run that has begun resumes without it
        training.train("d", files.path, **options | {"steps": steps, "schedule": "constant"})
        assert not RunDirectory(files.path).settings().wandb
        with pytest.raises(RuntimeError, match="no login"):
            training.train("d", files.path, wandb=True, **options | {"steps": steps, "schedule": "constant"})


@pytest.mark.parametrize(
    ("task", "values", "sentence"),
    [
        ("d", {"step": 3}, "step: expected a setting, got an unknown one; did you mean steps?"),
        ("d", {"steps": "3"}, "--steps: expected an integer, got '3'"),
        ("d", {"L_enc": 3}, "L_enc: expected a setting of d, got an unknown one"),
        ("d", {"epochs": 1, "steps": 3}, "--steps and --epochs exclude"),
        ("x", {}, "task: expected one of d, e, ed, classify, gato, got 'x'"),
        ("e", {"preset": "demo"}, "preset: expected one of e "),
    ],
)
def test_what_is_wrong_is_said(task, values, sentence, tmp_path):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        training.train(task, tmp_path / "run", **values)
