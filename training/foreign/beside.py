"""Two programs, one beside the other: the first line in which they differ, and what each line adds to the difference."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .cases import Case
from .checking import diagnose
from .recording import Recording
from .reference import Reference
from .report import Report, sentence
from .run import Seen

__all__ = ["Beside", "beside"]

LEAST = 0.01
"""Shares below it are not told."""

Line = tuple[int, str]  # an algorithm, and the number of its line


@dataclasses.dataclass
class Beside:
    """The differences between two programs."""

    one: Report
    other: Report  # its departures are those from the one
    apart: np.ndarray  # log-probabilities of the tokens x[2], …, x[ℓ]: those of the other, less those of the one
    shares: dict[Line, float]  # of this difference, what a line adds in its own arithmetic; the sum is 1

    @property
    def ok(self) -> bool:
        """Whether no line differs by more than the dtypes explain."""
        return self.other.ok

    def __str__(self) -> str:
        """The first line that differs, and the shares."""
        departures = [d for d in self.other.departures if d.kind != "harmless"]
        dtypes = " and ".join(dict.fromkeys((self.one.dtype, self.other.dtype)))
        first = f"the first line that differs:\n{sentence(departures[0])}" if departures else ""
        rows = [first or f"no line differs by more than {dtypes} explains"]
        largest, mean = np.abs(self.apart).max(), np.abs(self.apart).mean()
        told = f"differ by at most {largest:.2g}, by {mean:.2g} on average" if largest else "are equal to the bit"
        rows += [f"log-probabilities of the tokens {told}"]
        every = sorted(self.shares.items(), key=lambda item: -abs(item[1]))
        rows += [f"    {share:6.1%} by Algorithm {n}, line {line}" for (n, line), share in every if abs(share) >= LEAST]
        return "\n".join(rows)


def beside(
    case: Case,
    one: Recording,
    other: Recording,
    expect: str | Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Beside:
    """Compare what two programs computed of a case; `expect`: what is known to depart in the first.

    Raises:
        ValueError: for an algorithm without next tokens, or programs that cannot be compared to the last line.
    """
    if case.algorithm not in (8, 10):
        raise ValueError(f"--beside: expected a case of Algorithm 8 or 10, which predict tokens, got {case.algorithm}")
    first = diagnose(case, one, expect, tell)
    choices = {**first.declared, **first.walk.choices}
    second = diagnose(case, other, choices, tell)
    case = dataclasses.replace(case, base={**case.base, **choices})
    exact = Reference(case).go()
    paths = [_path(case, exact, report.walk.run.lines) for report in (first, second)]
    added = {visit: paths[1][visit] - paths[0][visit] for visit in exact.lines}
    apart = np.sum([*added.values()], axis=0)
    shares: dict[Line, float] = {}
    for visit, seen in exact.lines.items():
        line = seen.key.algorithm, seen.key.line
        shares[line] = shares.get(line, 0.0) + float(added[visit] @ apart) / max(float(apart @ apart), 1e-300)
    return Beside(first, second, apart, shares)


def _path(case: Case, exact: Reference, shown: Mapping[str, Seen]) -> dict[str, np.ndarray]:
    """Each line's share of the difference of log-probabilities: a program's numbers replace all lines up to it."""
    pins: dict[str, Any] = {}
    added, before = {}, _of_tokens(exact)
    for visit, seen in exact.lines.items():
        match = shown[visit].match if visit in shown else None
        if match is not None and np.shape(match.values) == seen.value.shape[1:]:
            pins[visit] = dataclasses.replace(seen, read=np.asarray(match.values)[None])
        after = _of_tokens(Reference(case, pins=pins).go())
        added[visit], before = after - before, after
    return added


def _of_tokens(run: Reference) -> np.ndarray:
    x = run.case.inputs["x"]
    return run.log_P[0][x[1:], np.arange(len(x) - 1)]
