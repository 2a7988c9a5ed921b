"""The help of train.py, the spelling of flags, and --epochs."""

import math

import pytest

import training
from training.command_line.train_flags import parser
from training.commands.generate import parser as generate_parser
from training.data.loading import load_run_data
from training.runs.directory import RunDirectory
from training.settings import flag
from training.tasks import TASKS


def help_of(*words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


@pytest.mark.parametrize("task", TASKS)
def test_help_is_a_screen_and_help_all_is_everything(task, capsys, monkeypatch):
    short = help_of(task, "--help", capsys=capsys, monkeypatch=monkeypatch)
    assert len(short.splitlines()) <= 55
    assert f"{task} --help-all" in short
    every = help_of(task, "--help-all", capsys=capsys, monkeypatch=monkeypatch)
    flags = [flag(name) for name in TASKS[task].all_settings()]
    assert not [name for name in flags if f"{name} " not in every.replace("\n", " ").replace(",", " ")]
    assert [name for name in flags if f"  {name} " not in short]  # not all
    assert " ".join(every.split()).count("(default: ") == len(flags) + 2  # --cache and --compilation-cache
    assert "--coordinator" in every
    assert "--coordinator" not in short


@pytest.mark.parametrize("words", [["--l_max=9", "--batch-size", "4"], ["--l-max", "9", "--batch_size=4"]])
def test_both_spellings_are_accepted(words):
    arguments = parser().parse_args(["d", "--run", "r", "--H-kv=2", *words])
    assert (arguments.l_max, arguments.batch_size, arguments.H_kv) == (9, 4, 2)


def test_both_spellings_are_accepted_by_other_commands():
    for words in (["--top-k", "3", "--l_gen", "5"], ["--top_k=3", "--l-gen=5"]):
        arguments = generate_parser().parse_args(["run", *words])
        assert (arguments.top_k, arguments.l_gen) == (3, 5)
    assert flag("H_kv") == "--H_kv"


SETTINGS = {"batch_size": 4, "l_max": 16, "d_e": 8, "H": 2, "d_mlp": 8, "L": 1, "tokenizer": "bytes"}
SETTINGS |= {"eval_batches": 1, "peak": 1e12, "tensorboard": False}


@pytest.mark.thorough
def test_epochs_are_steps(tmp_path):
    lines = (f"The {n}th says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(90))
    (tmp_path / "data.txt").write_text("".join(lines))
    given = SETTINGS | {"data": tmp_path / "data.txt", "cache": tmp_path, "quiet": True, "warmup": 1}
    training.train("d", tmp_path / "run", epochs=0.5, **given)
    description = RunDirectory(tmp_path / "run").description()
    n = load_run_data(description.settings, cache_dir=tmp_path).train.n_examples
    assert description.settings.steps == math.ceil(0.5 * n / 4)
    del given["warmup"]
    training.train("d", tmp_path / "other", epochs=1, **given)
    settings = RunDirectory(tmp_path / "other").description().settings
    assert (settings.steps, settings.warmup) == (math.ceil(n / 4), math.ceil(math.ceil(n / 4) / 10))
    training.train("d", tmp_path / "other", epochs=1, **given)  # the same call resumes the run


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--epochs", "1", "--steps", "3"], "--steps and --epochs exclude each other"),
        (["--epochs", "0"], "--epochs: expected a number above 0, got 0.0"),
        (["--epochs", "nan"], "--epochs: expected a number above 0, got nan"),
        (["--epochs", "many"], "--epochs: expected a number, got 'many'"),
    ],
)
def test_what_is_wrong_with_epochs_is_said(flags, sentence, tmp_path, called):
    assert called("train", "d", "--run", tmp_path / "run", *flags) == (2, "", f"train.py: {sentence}\n")
