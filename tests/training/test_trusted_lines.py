"""Opening a run executes no code but what is installed, imported already, or named by the caller."""

import json
import sys
from pathlib import Path

import pytest

from tests.run_cases import make_run
from training.commands.in_python import train
from training.interchange import convert, load_model, load_pretrained
from training.interchange.starting import start_from
from training.runs.directory import RunError
from training.runs.trained_model import load_run
from training.tasks import settings_from
from training.tasks.own_lines import modules_of, variant_named

PLANTED = """
import dataclasses, pathlib
from algorithms import PAPER
from algorithms.lines import MLP, Rotary

pathlib.Path("executed").touch()

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(MLP):
    pass

@dataclasses.dataclass(frozen=True, kw_only=True)
class Turned(Rotary):
    pass

MINE = PAPER.but(mlp=Mine())
"""
MLP = {"mlp": {"record": "runs.evil.payload:Mine"}}
NESTED = {"attention": [{"record": "Attention", "positions": {"record": "runs.evil.payload:Turned"}}]}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a run that brings a module; the folder is on the path, as with the scripts in a checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    make_run(tmp_path / "runs" / "evil", "d")
    (tmp_path / "runs" / "evil" / "payload.py").write_text(PLANTED)
    declare(MLP)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("runs", "shared_name", "installed_lines")]:
        del sys.modules[name]


def declare(lines, **settings):
    file = Path("runs/evil/config.json")
    state = json.loads(file.read_text())
    state["model"]["variant"] = {"record": "Variant"} | lines
    state["settings"] |= settings
    file.write_text(json.dumps(state))


COMMANDS = {
    "generate": ["runs/evil", "--prompt", "a"],
    "evaluate": ["runs/evil", "--data", "text.txt"],
    "serve": ["runs/evil", "--port", "0"],
    "look_inside": ["runs/evil", "--prompt", "ab"],
    "convert": ["runs/evil", "out"],
    "induction": ["runs/evil"],
    "train": ["--run", "runs/evil", "--steps", "3000"],
}


@pytest.mark.parametrize("variant", [MLP, NESTED], ids=["line", "nested"])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_executes_what_a_run_brings(called, name, variant):
    declare(variant)
    status, _, err = called(name, *COMMANDS[name])
    assert status == 2
    assert "runs.evil.payload: expected an installed package with the lines of this model, got none" in err
    assert "--lines runs.evil.payload" in err
    assert not Path("executed").exists()


@pytest.mark.parametrize("flags", [["--from", "runs/evil"], ["--config", "runs/evil/config.json"]])
def test_a_training_executes_nothing_of_files(called, flags):
    declare(MLP, variant="runs.evil.payload:MINE")
    Path("text.txt").write_text("a b c d e f.\n\n" * 99)
    status, _, err = called("train", "d", "--run", "runs/new", "--data", "text.txt", "--cache", "cache", *flags)
    assert (status, Path("executed").exists()) == (2, False)
    assert "--lines runs.evil.payload" in err


def test_an_interrupted_run_executes_nothing_of_its_settings(called):
    declare({}, variant="runs.evil.payload:MINE")
    assert called("train", "--run", "runs/evil")[0] == 2
    assert not Path("executed").exists()


OPENED = {
    "load_run": load_run,
    "load_model": load_model,
    "load_pretrained": load_pretrained,
    "convert": lambda run, **lines: convert(run, "out", to="run", **lines),
    "start_from": lambda run, **lines: start_from(settings_from({"start_from": run}, task="d"), Path, **lines),
    "train": lambda run, **lines: train("d", run, quiet=True, **lines),
}


@pytest.mark.parametrize("name", OPENED)
def test_the_functions_take_packages(name):
    with pytest.raises(RunError, match=r'config.json cannot be read: runs.evil.payload: .* \(lines=\["runs.evil.payl'):
        OPENED[name]("runs/evil")
    assert not Path("executed").exists()
    for other in ("runs.evil.pay", "runs.evil.payload.more", "evil", ""):
        with pytest.raises(RunError):
            OPENED[name]("runs/evil", lines=[other])
    assert not Path("executed").exists()
    if name != "train":  # this run has no data
        OPENED[name]("runs/evil", lines=["runs.evil"])
        assert Path("executed").exists()


@pytest.mark.end_to_end
def test_a_named_package_is_executed(printed):
    """Also one that the path lacks: the working directory is searched last."""
    sys.path.remove(str(Path.cwd()))
    printed("generate", "runs/evil", "--prompt", "a", "--l_gen", 2, "--lines", "other", "--lines", "runs.evil.payload")
    assert Path("executed").exists()
    assert sys.path[-1] == str(Path.cwd())
    load_run("runs/evil")  # now it is imported


def test_installed_packages(monkeypatch):
    """A package is installed if all of it is: not a part of a namespace that the working directory extends."""
    place = Path("lib/site-packages").absolute()
    for name in ("installed_lines", "shared_name"):
        (place / name).mkdir(parents=True)
    (place / "installed_lines" / "__init__.py").touch()
    for file in (place / "installed_lines" / "lines.py", place / "shared_name" / "ours.py"):
        file.write_text(PLANTED)
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    for module in ("installed_lines.lines", "shared_name.ours"):
        declare({"mlp": {"record": f"{module}:Mine"}})
        assert type(load_run("runs/evil").config.variant.mlp).__module__ == module
    for name in ("shared_name", "shared_name.ours"):
        del sys.modules[name]
    Path("shared_name").mkdir()
    for module in ("shared_name.theirs", "shared_name.ours"):
        Path("shared_name/theirs.py").write_text("raise AssertionError")
        declare({"mlp": {"record": f"{module}:Mine"}})
        with pytest.raises(RunError, match=f"{module}: expected an installed package"):
            load_run("runs/evil")
    declare({"mlp": {"record": "installed_lines.lines:Mine"}})
    for name in ("installed_lines", "installed_lines.lines"):
        del sys.modules[name]
    monkeypatch.chdir(place)  # the working directory is never one of installed packages
    with pytest.raises(RunError, match="expected an installed package"):
        load_run("../../runs/evil")


@pytest.mark.parametrize("module", ["antigravity", "", " ", "..up", "no_such", "runs/evil/payload", "a..b"])
def test_what_is_no_installed_package(module):
    declare({"mlp": {"record": f"{module}:Mine"}})
    with pytest.raises(RunError, match="expected an installed package"):
        load_run("runs/evil")


def test_what_is_typed_is_meant():
    assert modules_of("LLAMA") == ()
    assert modules_of("study.lines:MINE") == ("study.lines",)
    assert modules_of(json.dumps({"record": "Variant"} | MLP | NESTED)) == ("runs.evil.payload",) * 2
    assert variant_named("runs.evil.payload:MINE", ["runs"]).mlp.to_json() == MLP["mlp"]
