"""The command: makes each wrong edit in a scratch copy of the tree, and runs the tests that it faces."""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from training.crosscheck.edits import Edit

from .by_hand import BY_HAND
from .equivalent import EQUIVALENT
from .facing import facing
from .generated import ROOT, Generated, generated

__all__ = ["catcher", "edits", "main"]

MARKS = (
    "not (slow or thorough or end_to_end or download or compilers)",
    "(thorough or end_to_end) and not (slow or download or compilers)",
    "slow and not (download or compilers)",
)
"""The tests that run first, and those that run as long as nothing has failed."""
LIMIT = 1200
"""Seconds after which tests are ended; the first ones count as failed then."""
SURVIVED = "SURVIVED"


def edits() -> dict[str, tuple[Edit | Generated, tuple[str, ...]]]:
    """Return all edits by name, each with the files of tests/ that it faces."""
    return BY_HAND | {name: (edit, facing(edit.file)) for name, edit in generated().items()}


def catcher(edit: Edit | Generated, tests: Sequence[str]) -> str:
    """Make an edit in a copy of the tree and run tests there, and return the name of the first that fails; or SURVIVED.

    Raises:
        ValueError: if the code to replace is not there exactly once.
        RuntimeError: if the tests could not be run.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = pathlib.Path(folder)
        for package in ("algorithms", "training", "tests", "docs"):
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / edit.file).write_text(edit.made(ROOT), "utf-8")
        for marks in MARKS:
            found = _failed(copy, [f"tests/{test}" for test in tests], marks)
            if found is not None:
                return found
    return SURVIVED


def _failed(copy: pathlib.Path, tests: list[str], marks: str) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, "-p", "no:cacheprovider", "-n", "0", *tests]
    # compiling is what takes the time
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(copy)}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax")}
    options = {"cwd": copy, "env": os.environ | environment, "capture_output": True, "text": True}
    try:
        run = subprocess.run(command, check=False, timeout=LIMIT, **options)
    except subprocess.TimeoutExpired:
        return f"tests that do not end in {LIMIT} s" if marks == MARKS[0] else None
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", run.stdout, re.MULTILINE)
    if run.returncode in (0, 5):  # 5: no test has these marks
        return None
    if failed is None:
        raise RuntimeError(f"the tests {' '.join(tests)} did not run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return failed.group(1)


class _State:
    """The results so far, in a file with a JSON object a line; one holds as long as code and tests stay the same."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        lines = path.read_text("utf-8").splitlines() if path.exists() else ()
        self.known = {(row["name"], row["digest"]): row["by"] for row in map(json.loads, lines)}

    def note(self, name: str, digest: str, by: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "digest": digest, "by": by}, ensure_ascii=False) + "\n")


def _digest(edit: Edit | Generated, tests: Sequence[str]) -> str:
    texts = [(ROOT / edit.file).read_bytes(), *((ROOT / "tests" / test).read_bytes() for test in tests)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


say = functools.partial(print, flush=True)
"""Write a line at once, though the output be piped."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations",
        description="Make wrong edits in scratch copies, and say which test catches each; exit status 1 if one survives.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="edits to try (default: all)")
    parser.add_argument("--list", action="store_true", help="print the edits and their tests, and try none")
    parser.add_argument("--sample", type=int, metavar="N", help="try N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="how many at a time")
    state = ROOT / "build" / "mutations.jsonl"
    parser.add_argument(
        "--state", type=pathlib.Path, default=state, metavar="FILE", help="results (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    known = edits()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"expected names that --list prints, got {', '.join(map(repr, unknown))}")
    chosen = options.names or [name for name in known if name not in EQUIVALENT]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    if options.list:
        for name in chosen:
            say(f"{name}: {' '.join(known[name][1])}")
        return 0
    survivors = _try(chosen, known, _State(options.state), options.jobs)
    say(f"{len(chosen) - len(survivors)} of {len(chosen)} edits caught")
    return 1 if survivors else 0


def _try(chosen: Sequence[str], known: dict, state: _State, jobs: int) -> list[str]:
    """Try the edits, print and note the result of each, and return the names of those that survive."""

    def tried(name: str) -> tuple[str, str, float]:
        edit, tests = known[name]
        key, began = (name, _digest(edit, tests)), time.monotonic()
        if key not in state.known:
            state.known[key] = catcher(edit, tests)
            state.note(*key, state.known[key])
        return name, state.known[key], time.monotonic() - began

    survivors = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(tried, name) for name in chosen]
        for count, future in enumerate(concurrent.futures.as_completed(futures), 1):
            name, by, seconds = future.result()
            survivors += [name] * (by == SURVIVED)
            say(f"[{count}/{len(chosen)}] {name}: {by} ({seconds:.0f} s)")
    return survivors
