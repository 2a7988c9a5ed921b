"""The folders' contract: imports go one way, algorithms/ only computes, files and functions stay small."""

import ast
import itertools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A module of algorithms/ imports from its own row and from those above it. A new one gets its place here.
LAYERS = (
    {"notation", "variants", "masks"},
    {"parameters", "configs", "initialization", "batching", "registry", "checks"},
    {"linear", "activations", "dropout", "embedding", "scores", "attention", "normalization", "unembedding", "loss"}
    | {"reverse_mode", "tiles", "dense_attention", "blockwise_attention", "library_attention"},
    {"sublayers", "ed_transformer", "e_transformer", "d_transformer"},
    {"training", "inference"},
)
# What algorithms/ may import: nothing that reads files, the clock or the environment.
DEPENDENCIES = {"chex", "jax", "jaxtyping", "numpy", "optax"}
STANDARD_LIBRARY = {
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "inspect",
    "itertools",
    "math",
    "typing",
}
PLAIN_SGD = {"sgd", "apply_updates"}
OUTSIDE_WORLD = {"breakpoint", "eval", "exec", "input", "open", "print"}

MAX_FILE_LINES = 500
MAX_BODY_LINES = 60


def files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path):
    return str(path.relative_to(ROOT))


def parse(path):
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def imported(path):
    """Yield the dotted name of everything that a file imports, `from a import b` as a.b."""
    for node in parse(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[:-1]
            base = (
                ".".join((*package[: len(package) - node.level + 1], node.module or "")) if node.level else node.module
            )
            yield from (f"{base}.{alias.name}".replace("..", ".") for alias in node.names)


def layer(module):
    """The row of a module of algorithms/, given as the part of its dotted name after `algorithms.`."""
    rows = [row for row, names in enumerate(LAYERS) if module in names]
    assert rows, f"algorithms.{module} has no place in LAYERS: add it to a row, or import from where it is defined"
    return rows[0]


algorithms_files = pytest.mark.parametrize("path", files("algorithms"), ids=name_of)
every_file = pytest.mark.parametrize("path", files("algorithms", "training", "scripts", "tests"), ids=name_of)


@algorithms_files
def test_imports_within_algorithms_go_one_way(path):
    if path.name == "__init__.py" and path.parent == ROOT / "algorithms":
        return
    own = layer(path.relative_to(ROOT / "algorithms").with_suffix("").parts[0])
    for name in imported(path):
        if name.split(".")[0] == "algorithms":
            assert layer(name.split(".")[1]) <= own, f"{name_of(path)} imports {name}, which comes after it"


@algorithms_files
def test_algorithms_only_compute(path):
    allowed = DEPENDENCIES | STANDARD_LIBRARY | {"algorithms"}
    for name in imported(path):
        assert name.split(".")[0] in allowed, f"{name_of(path)} imports {name}"
    for node in parse(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in OUTSIDE_WORLD, f"{name_of(path)}:{node.lineno} calls {node.func.id}"


@algorithms_files
def test_the_only_optimizer_of_algorithms_is_plain_sgd(path):
    used = {name.split(".")[1] for name in imported(path) if name.startswith("optax.")}
    used |= {
        node.attr
        for node in parse(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "optax"
    }
    assert used <= PLAIN_SGD


@pytest.mark.parametrize("path", files("algorithms", "training"), ids=name_of)
def test_packages_import_nothing_above_them(path):
    above = {"scripts", "tests"} | ({"training"} if path.is_relative_to(ROOT / "algorithms") else set())
    assert above.isdisjoint(name.split(".")[0] for name in imported(path))


@pytest.mark.parametrize("path", files("training"), ids=name_of)
def test_training_does_not_print_or_read_the_clock(path):
    assert {"time", "datetime"}.isdisjoint(name.split(".")[0] for name in imported(path))
    calls = [node.func for node in parse(path) if isinstance(node, ast.Call)]
    assert not any(isinstance(function, ast.Name) and function.id == "print" for function in calls)


@every_file
def test_a_file_has_one_subject(path):
    assert len(path.read_text("utf-8").splitlines()) < MAX_FILE_LINES


@every_file
def test_a_function_fits_on_a_screen(path):
    for node in parse(path):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= MAX_BODY_LINES, f"{name_of(path)}:{node.lineno} {node.name} has a body of {lines} lines"


@pytest.mark.parametrize("path", files("algorithms", "training"), ids=name_of)
def test_public_signatures_are_typed(path):
    body = ast.parse(path.read_text("utf-8")).body
    classes = [node for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for function in itertools.chain(body, *(node.body for node in classes)):
        if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
            continue
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        untyped = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        assert not untyped, f"{name_of(path)}:{function.lineno} {function.name} does not type {untyped}"
        assert function.returns is not None, f"{name_of(path)}:{function.lineno} {function.name} lacks a return type"
