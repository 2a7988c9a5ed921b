"""Looking inside is nothing that threads, debuggers, coverage, ``python -O`` or a zipped package can trip over."""

import importlib
import itertools
import json
import pathlib
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import UNIDIRECTIONAL, alg03_attention, d_transformer, mh_attention
from algorithms.inside import record
from algorithms.machinery import naming
from tests import cases
from tests.algorithms.test_inside import D, X

ROOT = pathlib.Path(algorithms.__file__).parent
ATTENTION = alg03_attention.__file__


BATCHES = itertools.count(2)
"""Each trace has another shape, so that nothing of it is known from before."""


def traced(f):
    return jax.make_jaxpr(f)(jnp.tile(X, (next(BATCHES), 1)))


def program(x):
    """A transformer, and Algorithm 5 alone."""
    X, W = D.W_e[:, x[0]], jax.tree.map(lambda a: a[0], D.layers.attention)
    P = d_transformer(x, D, implementation="paper")
    return P, mh_attention(X, X, W, UNIDIRECTIONAL, implementation="paper")


def plainly():
    return traced(program)


def looked_at():
    return traced(record(program, "A/6", "X@8"))


def lines_run(f):
    """The lines of Algorithms 3 to 5's file that run, as a debugger or coverage sees them, each with its function."""
    seen = set()

    def of_frame(frame, event, _):
        if frame.f_code.co_filename != ATTENTION:
            return None
        if event == "line" and frame.f_lineno > 1:  # 1: the types of an inner function, which the tests check
            seen.add((frame.f_code.co_qualname, frame.f_lineno))
        return of_frame

    before = sys.gettrace()
    sys.settrace(of_frame)
    try:
        f()
    finally:
        sys.settrace(before)
    return seen


def test_a_tracer_sees_the_same_lines():
    """Coverage is a tracer: what it reports of a test that records is what it reports of one that does not."""
    with cases.traced_anew():  # what is compiled already is not run again
        plain, named = lines_run(plainly), lines_run(looked_at)
    assert len(plain) > 15
    assert named == plain


PROGRAM = """
import json
import jax, jax.numpy as jnp
import algorithms
from algorithms import DTransformerConfig, d_transformer, init_d_transformer
from algorithms.inside import record
theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=2, H=2, d_e=4, d_mlp=4))
P, seen = record(d_transformer, "A", "X@6")(jnp.array([3, 0, 1]), theta)
found = {"P": P, "A": seen["A"], "X@6": seen["X@6"]}
print(json.dumps({name: jnp.asarray(array).tolist() for name, array in found.items()}))
print(__debug__, algorithms.__file__)
"""


def zipped(path):
    """The package in a file."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in ROOT.rglob("*.py"):
            archive.write(file, file.relative_to(ROOT.parent))
    return path


@pytest.mark.end_to_end
@pytest.mark.parametrize("how", ["-O", "zip"])
def test_optimized_and_zipped(how, tmp_path):
    """``python -O`` drops assertions; of a zipped package, its loader has the source."""
    flags, path = ("-O", ROOT.parent) if how == "-O" else ("-B", zipped(tmp_path / "algorithms.zip"))
    program = f"import sys; sys.path.insert(0, {str(path)!r})\n{PROGRAM}"
    command = [sys.executable, flags, "-c", program]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    numbers, where = done.stdout.splitlines()
    assert where == f"{how != '-O'} {path / 'algorithms' / '__init__.py'}"
    namespace = {"print": lambda *_: None}
    exec(PROGRAM, namespace)  # its own text
    found = json.loads(numbers)
    for name, expected in namespace["found"].items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


LINE = """
import dataclasses
from algorithms.lines import MLP

@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(MLP):
    def __call__(self, X, W, **options):
        Y = {} * X  # line 8
        return Y
"""


@pytest.mark.end_to_end
def test_after_a_reload_the_new_lines_are_recorded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for factor in (2.0, 3.25):  # of two lengths: within one second, only its source's size makes byte code stale
        (tmp_path / "edited_line.py").write_text(LINE.format(factor), encoding="utf-8")
        importlib.invalidate_caches()
        module = importlib.reload(sys.modules["edited_line"]) if factor != 2 else importlib.import_module("edited_line")
        theta = D._replace(variant=D.variant.but(mlp=module.Own()))
        plain = d_transformer(X, theta)
        P, seen = record(d_transformer, "Y@8", "X_tilde@7")(X, theta)
        np.testing.assert_allclose(seen["Y@8"], factor * seen["X_tilde@7"], rtol=1e-12)
        np.testing.assert_allclose(P, plain, rtol=1e-12)


def test_a_function_without_its_source_says_so(monkeypatch):
    """As of a package of compiled files alone."""
    named = naming._with_names
    monkeypatch.setattr(naming, "_with_names", lambda function, _: named(function, None))
    with pytest.raises(ValueError, match="expected its source, whose tags name values, got only compiled code"):
        looked_at()
