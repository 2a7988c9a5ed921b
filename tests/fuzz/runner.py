"""The command: draws cases, checks them until the time is over, and says how to see a failed one again."""

import argparse
import contextlib
import itertools
import json
import pathlib
import signal
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import jax
import numpy as np

from tests.fuzz import attention, files, losses, requests, transformations
from tests.mutations.runner import say

__all__ = ["AREAS", "main"]

AREAS: dict[str, Callable[[np.random.Generator], None]] = {
    "attention": attention.check,
    "losses": losses.check,
    "transformations": transformations.check,
    "files": files.check,
    "requests": requests.check,
}
"""Name of an area → what draws a case, and raises if something is wrong with it."""
LONGEST = 300
"""Seconds after which a case counts as one that hangs."""
AT_ONCE = 40
"""Cases after which JAX forgets what it has compiled: its compiler has crashed in a process that kept thousands."""


class HangError(Exception):
    """A case took longer than it may."""


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Interrupt what takes longer."""

    def interrupt(*_: object) -> None:
        raise HangError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def failure_of(area: str, seed: int, n: int) -> BaseException | None:
    """Check case n of an area; returns what it raised, or None."""
    rng = np.random.default_rng([seed, zlib.crc32(area.encode()), n])
    try:
        with at_most(LONGEST):
            AREAS[area](rng)
    except Exception as error:
        return error
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Check random cases until the time is over; exit status 1 if one fails.",
    )
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=20.0, metavar="M", help="how long (default: 20)")
    parser.add_argument("--seed", type=int, metavar="N", help="default: drawn, and printed")
    parser.add_argument("--case", type=int, metavar="N", help="only this case of each area, with its traceback")
    parser.add_argument("--state", type=pathlib.Path, metavar="FILE", help="where to note the last case, to resume")
    options = parser.parse_args(arguments)
    unknown = [area for area in options.areas if area not in AREAS]
    if unknown:
        parser.error(f"expected areas among {', '.join(AREAS)}, got {', '.join(map(repr, unknown))}")
    areas = options.areas or list(AREAS)
    noted = json.loads(options.state.read_text("utf-8")) if options.state and options.state.exists() else {}
    seed = next((s for s in (options.seed, noted.get("seed")) if s is not None), None)
    seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
    with contextlib.closing(requests):
        if options.case is not None:
            return _again(areas, seed, options.case)
        first = noted.get("next", 0) if noted.get("seed") == seed else 0
        say(f"seed {seed}, from case {first}, {options.minutes:g} minutes: {', '.join(areas)}")
        return _run(areas, seed, first, monotonic() + 60 * options.minutes, options.state)


def _again(areas: Sequence[str], seed: int, n: int) -> int:
    failed = 0
    for area in areas:
        error = failure_of(area, seed, n)
        say(f"{area} {n}: {'passed' if error is None else ''.join(traceback.format_exception(error))}")
        failed += error is not None
    return min(failed, 1)


def _run(areas: Sequence[str], seed: int, first: int, end: float, state: pathlib.Path | None) -> int:
    checked, failed = dict.fromkeys(areas, 0), []
    for n in itertools.count(first):
        for area in areas:
            if monotonic() > end:
                told = ", ".join(f"{count} of {area}" for area, count in checked.items())
                say(f"checked {told}; {len(failed)} failed{''.join(f', {name}' for name in failed)}")
                return 1 if failed else 0
            error = failure_of(area, seed, n)
            checked[area] += 1
            if error is not None:
                failed.append(f"{area} {n}")
                say(f"{area} {n}: {type(error).__name__}: {str(error).strip()[:500]}")
                say(f"  again: python -m tests.fuzz {area} --seed {seed} --case {n}")
        if n % AT_ONCE == AT_ONCE - 1:
            jax.clear_caches()
        if state is not None:
            state.write_text(json.dumps({"seed": seed, "next": n + 1}), encoding="utf-8")
    raise AssertionError  # the count has no end
