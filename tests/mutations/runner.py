"""The command: makes each wrong edit in a scratch copy of the tree, and runs the tests that it faces."""

import argparse
import collections
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from .by_hand import BY_HAND
from .edits import Copy, Edit, Verdict, try_all
from .equivalent import EQUIVALENT
from .facing import facing
from .generated import ROOT, generated
from .located import check_planted
from .planted import PLANTED

__all__ = ["edits", "main"]

MARKS = (
    "not (slow or end_to_end or download or compilers)",
    "end_to_end and not (slow or download or compilers)",
    "slow and not (download or compilers)",
)
"""The tests that run first, and those that run as long as nothing has failed."""
LIMIT = 600
"""Seconds after which tests are ended; the first ones count as failed then."""
FIRST = 5
"""How many of the tests that caught other edits of a file run before all that it faces."""
SURVIVED = "SURVIVED"


def edits() -> dict[str, tuple[Edit, tuple[str, ...]]]:
    """Return all edits by name, each with the files of tests/ that it faces."""
    return BY_HAND | {name: (edit, facing(edit.file)) for name, edit in generated().items()}


class _Tested(Copy):
    """A scratch copy of the tree, with a process that runs tests there."""

    def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack) -> None:
        super().__init__(ROOT, folder, "algorithms", "training", "tests", "docs")
        shutil.copy(ROOT / "pyproject.toml", folder)
        # compiling is what takes the time
        environment = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(folder)}
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"), "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, str(folder / "tests" / "mutations" / "server.py"), str(LIMIT)]
        options = {"cwd": folder, "env": os.environ | environment, "text": True, "encoding": "utf-8"}
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        self.server = stack.enter_context(server)  # at the end its input is closed, and it ends

    def catcher(self, edit: Edit, tests: Sequence[str], first: Sequence[str] = ()) -> str:
        """Make an edit, run the first tests and then all, and return the name of one that fails; or SURVIVED.

        Raises:
            ValueError: if the code to replace is not there exactly once.
            RuntimeError: if the tests could not be run.
        """
        with self.edited(edit):
            runs = [(first, MARKS[0])] * bool(first) + [(tests, marks) for marks in MARKS]
            found = (self._failed([f"tests/{test}" for test in of_run], marks) for of_run, marks in runs)
            return next(filter(None, found), SURVIVED)

    def _failed(self, tests: list[str], marks: str) -> str | None:
        arguments = ["-x", "-q", "-m", marks, "-p", "no:cacheprovider", "-n", "0", *tests]
        print(json.dumps(arguments), file=self.server.stdin, flush=True)
        status, output = json.loads(self.server.stdout.readline())
        if status == -signal.SIGALRM:
            return f"tests that do not end in {LIMIT} s" if marks == MARKS[0] else None
        failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
        if status in (0, 5):  # 5: no test has these marks
            return None
        if failed is None:
            raise RuntimeError(f"the tests {' '.join(tests)} did not run:\n{output[-2000:]}")
        return failed.group(1)


class _State:
    """The results so far, in a file with a JSON object a line; one holds as long as code and tests stay the same."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        lines = path.read_text("utf-8").splitlines() if path.exists() else ()
        self.known = {(row["name"], row["digest"]): row["by"] for row in map(json.loads, lines)}

    def note(self, name: str, digest: str, by: str) -> None:
        self.known[name, digest] = by
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "digest": digest, "by": by}, ensure_ascii=False) + "\n")

    def likeliest(self, file: str, tests: Sequence[str]) -> list[str]:
        """The tests among these files that caught most of the other edits of a file."""
        of_file = f"{file.removeprefix('algorithms/')}:"
        caught = (by.partition("[")[0] for (name, _), by in list(self.known.items()) if name.startswith(of_file))
        found = collections.Counter(caught)
        return [test for test, _ in found.most_common() if _is_one_of(test, tests)][:FIRST]


def _is_one_of(test: str, files: Sequence[str]) -> bool:
    path, _, function = test.partition("::")
    return path in files and f"def {function}(" in (ROOT / "tests" / path).read_text("utf-8")


def _digest(edit: Edit, tests: Sequence[str]) -> str:
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
    parser.add_argument("--located", action="store_true",
                        help="instead: plant bugs (default: all), and see whether the cross-check locates and names each")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the edits and their tests, and try none")
    parser.add_argument("--sample", type=int, metavar="N", help="try N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="how many at a time")
    state = ROOT / "build" / "mutations.jsonl"
    parser.add_argument(
        "--state", type=pathlib.Path, default=state, metavar="FILE", help="results (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    known = dict.fromkeys(PLANTED) if options.located else edits()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        names = ", ".join(PLANTED) if options.located else "names that --list prints"
        parser.error(f"expected {names}; got {', '.join(map(repr, unknown))}")
    if options.located:
        return check_planted(options.names or list(PLANTED), ROOT, options.seed)
    chosen = options.names or [name for name in known if name not in EQUIVALENT]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    if options.list:
        for name in chosen:
            say(f"{name}: {' '.join(known[name][1])}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder, contextlib.ExitStack() as stack:
        copies = [_Tested(pathlib.Path(folder, str(i)), stack) for i in range(options.jobs)]
        judge = _judge(known, _State(options.state), copies)
        return try_all(chosen, judge, "edits caught", say=say, jobs=options.jobs)


def _judge(known: dict, state: _State, copies: Sequence[_Tested]) -> Callable[[str], Verdict]:
    """Return the judge: does a test catch an edit? What the results so far know is not tried again."""
    free: queue.SimpleQueue[_Tested] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def judge(name: str) -> Verdict:
        edit, tests = known[name]
        key, began = (name, _digest(edit, tests)), time.monotonic()
        if key not in state.known:
            copy = free.get()
            try:
                state.note(*key, copy.catcher(edit, tests, state.likeliest(edit.file, tests)))
            finally:
                free.put(copy)
        by = state.known[key]
        return Verdict((by != SURVIVED,), f"{by} ({time.monotonic() - began:.0f} s)")

    return judge
