"""Every command line in the README, the docs and the commands' own help is one that the commands accept."""

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from training.command_line.resolving import resolve, run_request, with_task
from training.command_line.train_flags import parser
from training.loop.optimizers import optimizer_from
from training.presets import PRESETS
from training.settings import flag
from training.tasks import TASKS, settings_from

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted(page for room in ("commands", "command_line") for page in (ROOT / "training" / room).glob("*.py"))
NAMES = ("benchmark", "convert", "crosscheck", "evaluate", "generate", "look_inside", "serve", "train")
MODULES = {name: f"training.commands.{name}" for name in NAMES}
COMMAND = re.compile(rf"(?:^|[`| ])(?:python )?(?:scripts/)?({'|'.join(MODULES)})\.py( [^`#<|\n)]*)", re.M)
RECIPE = re.compile(r"`(--[a-z][^`]*)`")


def commands():
    """Yield (command, arguments) of every command line that has no placeholders."""
    for page in PAGES:
        text = re.sub(r"\\\n *", "", page.read_text("utf-8"))  # a line that ends in a backslash goes on
        for name, rest in COMMAND.findall(text):
            words = rest.split("   ")[0].strip()
            if (not re.search(r"[{…\[]", words) or "[MASK]" in words) and "--help" not in words:
                yield name, words


FOUND = sorted(set(commands()))


def main_of(name):
    """What scripts/ runs."""
    return getattr(importlib.import_module(f"scripts.{name}"), f"{name}_main")


def train_settings(words):
    arguments = parser().parse_args(with_task(words))
    return resolve(run_request(arguments))


def test_there_are_commands_to_test():
    assert len(FOUND) > 20
    assert {name for name, _ in FOUND} == set(MODULES)


@pytest.mark.parametrize(("name", "words"), FOUND)
def test_a_documented_command_is_accepted(name, words, tmp_path, monkeypatch):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(words.replace("TASK", "d"))
    if name != "train":
        module = importlib.import_module(MODULES[name])
        module.parser().parse_args(arguments)
    elif arguments[0] in TASKS:
        settings = train_settings(arguments)  # what runs/ has here does not matter
        optimizer_from(settings)
    else:
        assert arguments[0] == "--run"


def test_every_command_is_in_the_table_once_and_installed():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)\.py` \| `(formal-[a-z-]+)` \|", page, re.M)
    scripts = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
    assert sorted(rows) == [(name, f"formal-{name.replace('_', '-')}") for name in scripts]
    with (ROOT / "pyproject.toml").open("rb") as file:
        installed = tomllib.load(file)["project"]["scripts"]
    assert installed == {command: f"training.commands:{name}_main" for name, command in rows}


@pytest.mark.parametrize("name", MODULES)
def test_an_unknown_flag_is_said(name, capsys):
    assert main_of(name)(["--nonsense"]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"\w+\.py: (--nonsense: expected a known flag|expected .*, got none; see --help).*\n", error)


def recipes():
    text = (ROOT / "docs" / "training.md").read_text("utf-8").replace("\n", " ")
    found = [re.sub(r"\b[KN]\b", "2", re.sub(r" +", " ", recipe)) for recipe in RECIPE.findall(text)]
    alone = ["--run", "--config", "--validation-data", "--data", "--help", "--limit", "--part", "--preset", "--steps"]
    alone += ["--compilation-cache"]
    return [recipe for recipe in found if recipe.split()[0] not in alone and " " in recipe]


@pytest.mark.parametrize("recipe", recipes())
def test_a_documented_recipe_is_accepted(recipe, tmp_path):
    words = shlex.split(recipe)
    fitting = [task for task in TASKS.values() if words[0] in map(flag, task.all_settings())]
    for task in fitting:
        optimizer_from(train_settings([task.name, "--run", str(tmp_path / "new"), *words]))
    assert fitting


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_accepted(name, tmp_path):
    task, values = PRESETS[name]
    settings = train_settings([task, "--run", str(tmp_path / "new"), "--preset", name])
    assert settings == settings_from(values, task=task)
    optimizer_from(settings)
