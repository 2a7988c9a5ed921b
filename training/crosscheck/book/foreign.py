"""The page of a check of foreign code: the paper's lines, the foreign source lines that hold their values, departures."""

import dataclasses
import os
import pathlib
from typing import Any

from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.comparison import Place
from training.crosscheck.foreign.checking import Report, merged
from training.crosscheck.foreign.evidence import Departure
from training.crosscheck.foreign.report import Verdict, verdicts
from training.crosscheck.pseudocode import Algorithm, Line

from .listing import Excerpt, excerpts, listing, page_of
from .pages import write_pages

__all__ = ["write_report"]


@dataclasses.dataclass(frozen=True)
class Checked:
    """A line of the paper, and where foreign code holds its values."""

    line: Line
    verdict: str
    holders: list[str]  # the tensors and their layouts
    places: list[Place]  # the source lines that compute them
    departures: list[Departure]  # what the code has instead


@dataclasses.dataclass(frozen=True)
class Side:
    """An algorithm beside the foreign code."""

    algorithm: Algorithm
    results: list[Checked]
    excerpts: list[Excerpt]


def write_report(report: Report, folder: pathlib.Path) -> pathlib.Path:
    """Write the report as a page, with a page for each foreign source file; returns the page's path."""
    rows, departures = verdicts(report), merged(report.departures)
    files = {file for row in rows for file, _ in row.sources}
    root = pathlib.Path(os.path.commonpath([pathlib.Path(file).parent for file in files])).parent if files else folder
    sides = []
    for n in dict.fromkeys(row.algorithm for row in rows):
        own = [_checked(row, departures, root) for row in rows if row.algorithm == n]
        sides.append(Side(PSEUDOCODE[n], own, excerpts(own, root)))
    shown = {row.algorithm for row in rows}
    told = [(d, _formula(d)) for d in departures]
    variables = {"report": report, "sides": sides, "departures": told, "shown": shown}
    pages: dict[str, tuple[str, dict[str, Any]]] = {"index.html": ("report.html", variables)}
    for file in sorted(files):
        relative = pathlib.Path(file).relative_to(root).as_posix()
        pages[page_of(relative)] = ("source.html", {"file": relative, "lines": listing(pathlib.Path(file))})
    return write_pages(folder, pages)


def _formula(departure: Departure) -> Line | None:
    """The departure's line of the paper."""
    algorithm = PSEUDOCODE[departure.algorithm]
    return algorithm.line(departure.line) if departure.line in algorithm.order else None


def _checked(row: Verdict, departures: list[Departure], root: pathlib.Path) -> Checked:
    places = [Place(pathlib.Path(file).relative_to(root).as_posix(), line, line, "") for file, line in row.sources]
    own = [d for d in departures if (d.algorithm, d.line) == (row.algorithm, row.line.number)]
    return Checked(row.line, row.verdict, row.holders, places, own)
