"""Every example in a docstring, and in a document with prompts, runs and prints what it says, in JAX's 32-bit mode."""

import ast
import doctest
import importlib
import os
import pathlib
import subprocess
import sys

import jax
import pytest

import algorithms

pytestmark = pytest.mark.end_to_end

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = sorted(path for package in ("algorithms", "training") for path in (ROOT / package).rglob("*.py"))


def docstrings(path):
    """Yield (name, line, docstring) by the text alone: doctest's own finder misses what decorators wrap."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", path.stem), getattr(node, "lineno", 0), text


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_docstrings(path, capsys):
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    given = {"jax": jax, "jnp": jax.numpy, **vars(algorithms)} if path.is_relative_to(ROOT / "algorithms") else {}
    with jax.enable_x64(False):
        for name, line, text in docstrings(path):
            runner.run(doctest.DocTestParser().get_doctest(text, given | vars(module), name, str(path), line))
    assert runner.failures == 0, capsys.readouterr().out


EXAMPLES = [f"examples/{name}.py" for name in ("gauss_newton", "sequence_parallel", "speculative")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["inside.md", "notes/inside.md", "notes/circuits.md", "research.md", *EXAMPLES])
def test_examples_in_documents(name, tmp_path):
    """As a reader runs them, ``python -m doctest``, in which their lines are those of a script."""
    text = (ROOT / "docs" / name).read_text("utf-8")
    path = tmp_path / pathlib.Path(name).name
    path.write_text(text, "utf-8")
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_ENABLE_X64": "0"}
    command = [sys.executable, "-m", "doctest", path]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ | devices)
    assert done.returncode == 0, done.stdout + done.stderr
