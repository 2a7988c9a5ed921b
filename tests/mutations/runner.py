"""The command: makes each wrong edit in a scratch copy of the tree, and runs the tests that must catch it."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from .copies import apply
from .mutation import Mutation
from .table import MUTATIONS

__all__ = ["main"]

ROOT = pathlib.Path(__file__).resolve().parents[2]


def catcher(mutation: Mutation) -> str | None:
    """Make an edit in a copy of the tree, and run its tests there until one fails.

    `mutation`: the edit. Result: the name of the test that failed; None if none did.

    Raises:
        ValueError: if the code to replace does not stand there exactly once.
        RuntimeError: if the tests could not be run.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = pathlib.Path(folder)
        apply(mutation, ROOT, copy)
        for own in ("tests", "docs"):
            shutil.copytree(ROOT / own, copy / own, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            *mutation.tests,
        ]
        # compiling is what takes the time
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return None
    failed = re.search(r"^FAILED tests/(\S+)", run.stdout, re.MULTILINE)
    if run.returncode != 1 or failed is None:
        raise RuntimeError(
            f"the tests {' '.join(mutation.tests)} did not run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
        )
    return failed.group(1)


def say(line: str) -> None:
    """Write a line at once, though the output be piped."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations",
        description="Make wrong edits in scratch copies, and say which test catches each; exit status 1 if one survives.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to try (default: all)")
    parser.add_argument("--list", action="store_true", help="print the mutations and their tests, and try none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="how many at a time")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MUTATIONS]
    if unknown:
        parser.error(f"expected names that --list prints, got {', '.join(map(repr, unknown))}")
    chosen = options.names or list(MUTATIONS)
    if options.list:
        for name in chosen:
            m = MUTATIONS[name]
            say(f"{name}: {m.file}, {m.function}, Algorithm {m.algorithm}, line {m.line or '–'}: {' '.join(m.tests)}")
        return 0
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, caught_by in zip(chosen, pool.map(lambda name: catcher(MUTATIONS[name]), chosen), strict=True):
            say(f"{name}: {'SURVIVED' if caught_by is None else caught_by}")
            survivors += [name] if caught_by is None else []
    say(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations caught")
    return 1 if survivors else 0
