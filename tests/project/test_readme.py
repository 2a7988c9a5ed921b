"""The README against the code: its table, its example, and the files and commands that it names."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from algorithms import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def departures(function):
    """What the docstring declares, as one sentence in one line."""
    found = re.search(r"Departures: (.*?)\n\n", inspect.getdoc(function) or "", re.DOTALL)
    assert found, f"{function.__name__} declares no departures"
    return " ".join(found.group(1).split()).rstrip(".")


def table():
    """Number → its function in the README, as a link."""
    return {int(number): function for number, function in re.findall(r"\| (\d+) \| (\[`\w+`\]\([^)]*\))", README)}


def declared():
    """Number → its departures in docs/crosscheck.md."""
    text = (ROOT / "docs" / "crosscheck.md").read_text("utf-8")
    return {int(number): said for number, said in re.findall(r"^\| (\d+) \[`\w+`\]\S+ \| (.*) \|$", text, re.MULTILINE)}


def test_the_table_has_all_algorithms():
    assert sorted(REGISTRY) == list(range(1, 16)) == sorted(table()) == sorted(declared())


@pytest.mark.parametrize("number", range(1, 16))
def test_row(number):
    entry = REGISTRY[number]
    defined_in = Path(inspect.getsourcefile(inspect.unwrap(entry.lines))).relative_to(ROOT).as_posix()
    assert table()[number] == f"[`{entry.function.__name__}`]({defined_in})"
    assert declared()[number] == departures(entry.function)


EXAMPLES = re.findall(r"```python\n(.*?)```\n\nprints[^\n]*\n\n```\n(.*?)```", README, re.DOTALL)


@pytest.mark.end_to_end
@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_an_example_runs_and_prints_what_the_readme_says(code, printed):
    out = []
    with jax.enable_x64(False):
        exec(compile(code, "README.md", "exec"), {"print": lambda *values: out.append(" ".join(map(str, values)))})
    assert out == printed.splitlines()


@pytest.mark.end_to_end
def test_the_examples_have_no_type_errors(tmp_path):
    """By pyright with its defaults; `make lint` reads ``tests/user_code.py``."""
    pytest.importorskip("pyright", reason="pyright is in the extra dev")
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == len(EXAMPLES) == 1
    for i, text in enumerate(examples):
        (tmp_path / f"example{i}.py").write_text(text, "utf-8")
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT}"]}}', "utf-8")
    command = [sys.executable, "-m", "pyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def crosscheck(root):
    """The lines that the README's cross-check prints, run in a copy of the repository."""
    script = [sys.executable, "scripts/crosscheck.py", "--algorithm", "4"]
    environment = os.environ | {"PYTHONPATH": str(root), "COLUMNS": "170"}
    return subprocess.run(script, check=False, capture_output=True, text=True, cwd=root, env=environment).stdout


@pytest.mark.end_to_end
def test_the_cross_check_prints_what_the_readme_says(tmp_path):
    equal, named = re.findall(r"```\n((?:implementation|Algorithm) .*?)```", README, re.DOTALL)
    for folder in ("algorithms", "docs", "scripts", "tests", "training"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert crosscheck(tmp_path).endswith(f"\n{equal}")
    file, before, after = re.search(r"\((algorithms/\S+)\), such as `(.*?)` to `(.*?)`", README).groups()
    source = (tmp_path / file).read_text("utf-8")
    assert source.count(f"f.{before}") == 1
    (tmp_path / file).write_text(source.replace(f"f.{before}", f"f.{after}"), "utf-8")
    assert f"\n{named}" in crosscheck(tmp_path)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 130


def test_ci_runs_the_two_commands_as_printed():
    printed = re.findall(r"^    (make [^#\n]*?) *#", README, re.MULTILINE)
    assert printed == ["make demo", "make test"]
    run = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert [line for line in run if line in printed] == printed


def test_the_citation_is_of_this_version():
    citation, project = ((ROOT / name).read_text("utf-8") for name in ("CITATION.cff", "pyproject.toml"))
    assert re.findall(r"^version: (.*)$", citation, re.M) == re.findall(r'^version = "(.*)"$', project, re.M)
    assert "https://arxiv.org/abs/2207.09238" in citation


def test_scripts_and_make_targets_that_the_readme_names_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all((ROOT / script).exists() for script in re.findall(r"scripts/\w+\.py", README))
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z-]+)", README)) <= targets
