"""The processor time of quick tests: a second each, and what budget.txt grants to those of some files.

The tests of a file share what they compile, and any of them may be the one that pays: beyond their seconds they have
four more together.

``BUDGET=write make test WORKERS=0`` measures them all, on a quiet machine, and writes budget.txt.
"""

import os
from pathlib import Path

import pytest

FILE = Path(__file__).with_suffix(".txt")
SECOND, SHARED = 1.0, 4.0
"""What a test may take beyond its grant, and what the tests of a file may beyond that for what they share."""
LISTED = 0.5
AS_USERS = os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "0"
MODE = os.environ.get("BUDGET", "enforce" if os.environ.get("CI") and not AS_USERS else "")
"""Enforced where changes are judged; a user's machine may be slower, and all of XLA's optimizations take more."""
LATER = ("slow", "thorough", "end_to_end", "download", "compilers")

_granted = {name: float(s) for s, name in map(str.split, FILE.read_text("utf-8").splitlines())} if FILE.exists() else {}
_taken: dict[str, float] = {}
_left: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a quick test that takes longer than it may."""
    before = _processor_time()
    result = yield
    if not MODE or any(map(item.get_closest_marker, LATER)):
        return result
    spent, file = _processor_time() - before, item.nodeid.partition("::")[0]
    _taken[file] = max(spent, _taken.get(file, 0))
    most = _granted.get(file, 0) + SECOND
    _left[file] = _left.get(file, SHARED) - max(spent - most, 0)
    if MODE == "enforce" and spent > most and _left[file] < 0:
        pytest.fail(
            f"expected at most {most:.1f} s of processor time, and {SHARED:.0f} more for what the tests of this file "
            f"share, got {spent:.1f}; make the test smaller, share what it compiles, or mark it end_to_end"
        )
    return result


def pytest_sessionfinish():
    """Write what was measured."""
    if MODE == "write":
        slow = sorted((name, seconds) for name, seconds in _taken.items() if seconds >= LISTED)
        FILE.write_text("".join(f"{seconds:.1f} {name}\n" for name, seconds in slow), "utf-8")


def _processor_time() -> float:
    """Seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])
