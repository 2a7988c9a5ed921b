"""How an optional library is installed: from a wheel, and from a checkout that nobody installed."""

import re
import subprocess
import sys
import tomllib
import types
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from tests.run_cases import files_end_at
from training import extras
from training.crosscheck.book import write_book
from training.data.chat import ChatTemplate
from training.disk import reason
from training.extras import EXTRAS, PROJECT, install, unsafe
from training.interchange.containers import Tensors

ROOT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_an_extra_of_a_wheel_is_named_by_its_packages(monkeypatch, tmp_path):
    """The project is in no registry."""
    needs = ["jax>=0.7.2", 'pyarrow>=17; extra == "data"', "zstd>=1; python_version < '3.14' and extra == 'data'"]
    monkeypatch.setattr(metadata, "requires", {PROJECT: [*needs, 'wandb>=0.19; extra == "wandb"']}.get)
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "training" / "extras.py"))
    assert install("data") == "pip install 'pyarrow>=17' 'zstd>=1'"


def test_an_extra_of_a_checkout_is_named_as_in_the_documents(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert install("wandb") == "pip install -e '.[wandb]'"
    documented = (ROOT / "docs" / "training.md").read_text("utf-8").replace('"', "")
    assert "pip install -e .[wandb]" in documented
    monkeypatch.chdir(tmp_path)
    assert install("wandb") == f"pip install -e '{ROOT}[wandb]'"


def test_every_extra_that_a_message_names_is_declared():
    asked = set(EXTRAS.values())
    for path in (ROOT / "training").rglob("*.py"):
        asked.update(re.findall(r"install\(['\"]([\w-]+)['\"]\)", path.read_text("utf-8")))
    assert {"data", "models", "serve", "sklearn", "wandb"} <= asked <= set(DECLARED["optional-dependencies"])
    assert DECLARED["name"] == PROJECT
    needed = [need for needs in DECLARED["optional-dependencies"].values() for need in needs]
    assert [need for need in needed if need.startswith("jinja2")] == ["jinja2>=3.1.6"] * 2  # older ones are refused


def test_what_functions_import_of_an_extra_is_checked_before_slow_work():
    late, early = set(), set()
    for path in (ROOT / "training").rglob("*.py"):
        text = path.read_text("utf-8")
        late.update(re.findall(r"(?m)^ +(?:import|from) ([a-z_]+)|import_module\(\"([a-z_]+)", text))
        for names in re.findall(r"import_early\((.*)\)", text):
            early.update(re.findall(r"\"([a-z_]+)", names))
    late = {name for both in late for name in both}
    in_recordings = {"safetensors"}  # of foreign models, which are read first
    assert {"tabulate", "wandb"} < early
    assert late & EXTRAS.keys() <= early | in_recordings


OLD = {
    "jinja2": ("3.1.5", "3.1", "2.11.3", "3.1.5.post1"),
    "torch": ("2.5.1", "2.5.1+cu118", "1.13.0a0", "2"),
}
NEW = {"jinja2": ("3.1.6", "3.2", "4", "3.10.0"), "torch": ("2.6.0", "2.6.0+cpu", "2.13.0", "10.0", "2.6")}


@pytest.mark.parametrize("package", OLD)
def test_a_package_with_a_known_hole_is_refused(monkeypatch, tmp_path, package):
    """Where it would read what others wrote, and before it does."""
    uses = {
        "jinja2": [
            lambda: ChatTemplate("").render([{"role": "user", "content": "a"}]),
            lambda: write_book([], tmp_path, ROOT),
        ],
        "torch": [lambda: Tensors(tmp_path)],
    }
    if package == "torch":
        monkeypatch.setitem(
            sys.modules, "torch", types.SimpleNamespace(load=lambda *_, **__: pytest.fail("it is read"))
        )
        (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    least = {"jinja2": "3.1.6", "torch": "2.6"}[package]
    for version in OLD[package]:
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        for use in uses[package]:
            with pytest.raises(
                ValueError, match=rf"expected {package} {least} or later, got .*; pip install -U {package}"
            ):
                use()
    for version in NEW[package]:
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        assert unsafe(package, least=least, because="") is None


@pytest.mark.parametrize("script", ["train", "generate", "crosscheck", "benchmark"])
def test_before_anything_is_installed_a_script_says_what_to_install(script):
    command = [sys.executable, "-S", ROOT / "scripts" / f"{script}.py"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    extra = "book" if script == "crosscheck" else "train"
    assert (found.returncode, found.stdout) == (2, "")
    assert re.fullmatch(rf"{script}.py: jax is not installed: pip install .*\[{extra}\]'\n", found.stderr)


def test_numpys_words_for_a_full_disk(tmp_path):
    with files_end_at(10_000), pytest.raises(OSError, match=r"requested and \d+ written") as error:
        np.zeros(9_000).tofile(tmp_path / "array")
    assert reason(error.value).startswith("No space left on device (9000 requested")
