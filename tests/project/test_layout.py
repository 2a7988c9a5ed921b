"""The folders' contract: algorithms/ only computes, files and functions stay small. `make lint` checks imports."""

import ast
import functools
import itertools
import pathlib

from algorithms.machinery.tags import tags_in

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What algorithms/ may import: nothing that reads files, the clock or the environment, and no optimizer.
DEPENDENCIES = {"jax", "jaxtyping", "numpy"}
STANDARD_LIBRARY = {"ast", "collections", "contextlib", "contextvars", "dataclasses", "enum", "fractions", "functools"}
STANDARD_LIBRARY |= {"html", "inspect", "io", "itertools", "json", "math", "operator", "re", "sys", "textwrap"}
STANDARD_LIBRARY |= {"tokenize", "types", "typing", "weakref"}
EXCEPTIONS = {
    ("algorithms/machinery/contract.py", "warnings"),  # of an argument that has another name now
    ("algorithms/machinery/devices.py", "pathlib.Path"),  # what it multiplies is in a file of Linux
    ("algorithms/roles.py", "optax.contrib.MuonDimensionNumbers"),  # a pair of axes
}
POSIX = {"fcntl", "grp", "pwd", "readline", "resource", "termios"}
POSIX |= {f"os.{name}" for name in ("O_NOFOLLOW", "O_NONBLOCK", "fork", "geteuid", "getuid", "sysconf")}
POSIX |= {f"signal.{name}" for name in ("ITIMER_PROF", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGPROF", "setitimer")}
OUTSIDE_WORLD = {"breakpoint", "eval", "exec", "input", "open", "print"}


def files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path):
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def parse(path):
    return list(ast.walk(tree_of(path)))


def imported(path):
    """Yield the dotted name of everything that a file imports, `from a import b` as a.b."""
    for node in parse(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[:-1]
            above = package[: len(package) - node.level + 1]
            base = ".".join((*above, node.module or "")) if node.level else node.module
            yield from (f"{base}.{alias.name}".replace("..", ".") for alias in node.names)


def each_of(paths):
    """Make one test of a check of each file: thousands of tests would take longer to count than to run."""

    def test_of(check):
        def test():
            wrong = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    wrong.append(f"{name_of(path)}: {error}")
            assert not wrong, "\n".join(wrong)

        test.__doc__ = check.__doc__
        return test

    return test_of


algorithms_files = each_of(files("algorithms"))


def called_at_import(node):
    """The calls that run when a module is imported: none in functions, but their decorators'."""
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in node.decorator_list if isinstance(node, ast.FunctionDef) else ast.iter_child_nodes(node):
        yield from called_at_import(child)


@each_of(files("tests"))
def test_tests_compile_nothing_when_they_are_imported(path):
    """Each worker imports all of them: `cases.array`, `cases.key` and the like need no program, NumPy neither."""
    for call in called_at_import(tree_of(path)):
        of_jax = ast.unparse(call.func).startswith(("jnp.", "jax.numpy.", "jax.random.", "jax.vmap(", "jax.lax."))
        harmless = ast.unparse(call.func) in ("jnp.dtype", "jnp.finfo")
        assert not of_jax or harmless, f"{name_of(path)}:{call.lineno} {ast.unparse(call)}"


@algorithms_files
def test_algorithms_only_compute(path):
    allowed = DEPENDENCIES | STANDARD_LIBRARY | {"algorithms"}
    for name in imported(path):
        known = name.split(".")[0] in allowed or (name_of(path), name) in EXCEPTIONS
        assert known, f"{name_of(path)} imports {name}"
    for node in parse(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in OUTSIDE_WORLD, f"{name_of(path)}:{node.lineno} calls {node.func.id}"


@algorithms_files
def test_functions_with_tagged_lines_are_numbered(path):
    """Without the decorator, what they compute would have no name for who looks inside."""
    text = path.read_text("utf-8")
    tags, tree = tags_in(text), tree_of(path)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in itertools.chain(tree.body, *(c.body for c in classes)):
        if isinstance(node, ast.FunctionDef):
            is_tagged = any(node.lineno <= line <= node.end_lineno for line in tags)
            decorators = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
            is_public = not decorators.isdisjoint({"algorithm", "compiled"})
            assert is_public or is_tagged == ("numbered" in decorators), f"{name_of(path)}:{node.lineno} {node.name}"
            assert not (is_public and "numbered" in decorators), f"{name_of(path)}:{node.lineno} {node.name}"


@each_of(sorted({*files("training")} - {*files("training/benchmarks", "training/commands", "training/command_line")}))
def test_training_does_not_read_the_clock(path):
    clocks = {"time"} if path.name == "chat_worker.py" else {"time", "datetime"}  # templates ask for the date
    assert clocks.isdisjoint(name.split(".")[0] for name in imported(path))


@each_of(sorted({*files("algorithms", "training")} - {ROOT / "training" / "system.py"}))
def test_what_only_posix_has_is_in_one_file(path):
    used = {name.split(".")[0] for name in imported(path)}
    used |= {ast.unparse(node) for node in parse(path) if isinstance(node, ast.Attribute)}
    assert POSIX.isdisjoint(used), f"{name_of(path)} uses {POSIX & used}"


@each_of(files("algorithms", "training"))
def test_public_signatures_are_typed(path):
    body = tree_of(path).body
    classes = [node for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for function in itertools.chain(body, *(node.body for node in classes)):
        if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
            continue
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        untyped = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        assert not untyped, f"{name_of(path)}:{function.lineno} {function.name} does not type {untyped}"
        assert function.returns is not None, f"{name_of(path)}:{function.lineno} {function.name} lacks a return type"
