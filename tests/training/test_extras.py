"""How an optional library is installed: from a wheel, and from a checkout that nobody installed."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from training.commands import EXTRAS
from training.extras import PROJECT, install

ROOT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_an_installed_project_is_named(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "1" if name == PROJECT else pytest.fail(name))
    assert install("data") == "pip install 'formal-algorithms[data]'"


def test_a_checkout_is_named_by_its_directory(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert install("data") == f"pip install -e '{ROOT}[data]'"


def test_every_extra_that_a_message_names_is_declared():
    asked = set(EXTRAS.values())
    for path in (ROOT / "training").rglob("*.py"):
        asked.update(re.findall(r"install\(['\"]([\w-]+)['\"]\)", path.read_text("utf-8")))
    assert {"data", "models", "serve", "sklearn", "wandb"} <= asked <= set(DECLARED["optional-dependencies"])
    assert DECLARED["name"] == PROJECT
