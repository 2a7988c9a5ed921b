"""Commands with the compilation cache: the same numbers as without it, whatever is in it, and however many use it."""

import os
import pathlib
import subprocess
import sys

import chex
import pytest

from tests.training_cases import untimed
from training.runs.directory import RunDirectory
from training.runs.named_arrays import flatten
from training.runs.trained_model import load_run

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
PIPES = ("stdout", "stderr")
SIZES = {"--l_max": 8, "--L": 1, "--H": 2, "--d_e": 8, "--d_mlp": 8, "--batch-size": 4, "--steps": 3, "--peak": 1e12}
FLAGS = ["--quiet", "--no-tensorboard", "--tokenizer", "bytes", *(word for item in SIZES.items() for word in item)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("cache")
    (root / "text.txt").write_text("".join(f"The {n}th of many lines.\n\n" for n in range(200)))
    return root


def begin(root, script, *arguments, **environment):
    inherited = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    env, pipes = inherited | {"XDG_CACHE_HOME": str(root / "home")} | environment, dict.fromkeys(PIPES, subprocess.PIPE)
    return subprocess.Popen([sys.executable, str(SCRIPTS / script), *map(str, arguments)], env=env, text=True, **pipes)


def train(root, run, *flags, **environment):
    return begin(root, "train.py", "d", "--run", root / run, "--data", root / "text.txt", *FLAGS, *flags, **environment)


def completed(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out, err


def numbers(path):
    return untimed(RunDirectory(path).metrics), flatten(load_run(path).theta)


@pytest.fixture(scope="module")
def without(root):
    _, err = completed(train(root, "without", "--compilation-cache", "off"))
    assert not list((root / "home").rglob("*-cache"))
    return numbers(root / "without"), err


@pytest.mark.thorough
def test_two_that_start_at_once_and_one_after_them_have_the_same_numbers(root, without):
    expected, said = without
    programs = root / "home" / "formal-algorithms" / "programs"
    together = [train(root, name) for name in ("first", "second")]
    for process in together:
        completed(process)
    kept = sorted(programs.rglob("*-cache"))
    _, err = completed(train(root, "third"))
    assert sorted(programs.rglob("*-cache")) == kept != []
    assert err == said
    for name in ("first", "second", "third"):
        chex.assert_trees_all_equal(numbers(root / name), expected)


def test_a_spoilt_or_useless_directory_changes_no_answer(root, without):
    ask = ("generate.py", root / "without", "--prompt", "The", "--l_gen", 5, "--compilation-cache")
    expected = completed(begin(root, *ask, "off"))
    assert completed(begin(root, *ask, root / "spoilt")) == expected
    for path in (root / "spoilt").rglob("*-cache"):
        path.write_bytes(path.read_bytes()[:-9])
    out, err = completed(begin(root, *ask, root / "spoilt"))
    assert (out, "Error reading persistent compilation cache entry" in err) == (expected[0], True)
    out, err = completed(begin(root, *ask, root / "text.txt" / "programs"))
    assert (out, err.count("\n")) == (expected[0], 1)
    assert "cannot keep compiled programs" in err
