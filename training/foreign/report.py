"""The result of a check of foreign code: the verdict on each line of the paper, and the departures, in words, and as a page."""

import dataclasses
import functools
import os
import pathlib
import re
from typing import Any, ClassVar

from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.pseudocode import Line
from training.crosscheck.report import Place, escaped

from .cases import Case
from .catalogue import SLOTS
from .evidence import Departure, Walk
from .run import Key

__all__ = ["Report", "Recognized", "merged", "sentence", "write_report"]

WORST = ("differs", "behind", "not shown", "in step", "equal")
"""Verdicts from the most to the least important: a line with several values has the first."""

STACKS = {"l": "layers", "enc": "encoder layers", "dec": "decoder layers"}


@dataclasses.dataclass(frozen=True)
class Recognized:
    """A line of the paper among what foreign code computes."""

    algorithm: int
    line: Line
    status: str  # one of `WORST`
    holders: list[str]  # the foreign tensors that hold its values, and their layouts
    places: list[Place]  # the source lines that compute these
    departures: list[Departure]  # what the code has instead

    notes: ClassVar[tuple[str, ...]] = ()

    @property
    def verdict(self) -> str:
        """The status, or "DIFFERS" if something departs here."""
        return "DIFFERS" if self.departures else self.status

    @property
    def is_wrong(self) -> bool:
        """Whether something departs here or before."""
        return self.verdict in ("DIFFERS", "differs", "behind")

    @property
    def wrong(self) -> list[str]:
        """What departs here."""
        found = [d for d in self.departures if d.kind != "harmless"]
        return [f"{d.text} ({d.where})" if d.where else d.text for d in found]

    def row(self) -> list[str]:
        """The line in the columns of `Report`."""
        return [escaped("\n".join(self.holders[:4])) + ("\n…" if len(self.holders) > 4 else ""), self.verdict]


@dataclasses.dataclass
class Report:
    """The result of a check."""

    columns: ClassVar[dict[str, Any]] = {
        "where the code holds its values": {"ratio": 5}, "verdict": {"no_wrap": True},
    }  # fmt: skip
    title: ClassVar[str] = ""

    case: Case
    dtype: str
    walk: Walk
    departures: list[Departure]  # of the lines, then of loss, gradients, updates, sampling and decoding
    notes: list[str]
    declared: dict[str, str]  # the choices that were known to differ
    is_variant: str  # how the departures relate to a named variant, such as "… the lines that GPT2 changes"

    @property
    def ok(self) -> bool:
        """Whether nothing departs."""
        return all(d.kind == "harmless" for d in self.departures)

    def __str__(self) -> str:
        """The departures and what else was found, in words."""
        found = list(self.walk.status.values())
        counts = [f"{found.count(s)} {'differ' if s == 'differs' else s}" for s in WORST[::-1] if s in found]
        head = f"Algorithm {self.case.algorithm}, {self.dtype}: {len(found)} values: {', '.join(counts)}"
        rows = [*map(sentence, self.departures)]
        expect = [f'if that is meant: --expect "{self.expect}"'] if self.expect else []
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([head, *rows, *filter(None, [self.is_variant]), *expect, *notes])

    @property
    def expect(self) -> str:
        """The `expect` that declares these departures, if all can be declared: see `check`."""
        found = [d for d in self.departures if d.kind != "harmless"]
        said = {scope: name for d in found for scope, name in d.choices.items() if scope.partition("@")[0] in SLOTS}
        is_whole = all(d.kind == "named" and set(d.choices) & set(said) for d in found)
        return ",".join(map("=".join, said.items())) if is_whole and "extra:" not in "".join(said.values()) else ""

    @functools.cached_property
    def lines(self) -> dict[tuple[int, str], Recognized]:
        """The lines that have values in the case, or a departure."""
        visits: dict[tuple[int, str], list[str]] = {}
        for visit, seen in self.walk.run.lines.items():
            visits.setdefault(_printed(seen.key), []).append(visit)
        keys = {*visits, *map(_printed, self.departures)}
        keys = sorted(keys, key=lambda k: (k[0], PSEUDOCODE[k[0]].order.index(k[1])))
        return {key: self._recognized(key, visits.get(key, [])) for key in keys}

    def _recognized(self, key: tuple[int, str], visits: list[str]) -> Recognized:
        walk, (n, number) = self.walk, key
        matches = filter(None, (walk.run.lines[visit].match for visit in visits))
        sources = [tensor.source for match in matches for tensor in match.tensors if tensor.source]
        return Recognized(
            n,
            PSEUDOCODE[n].line(number),
            min((walk.status[visit] for visit in visits), key=WORST.index, default=""),
            holders=list(dict.fromkeys(walk.layouts[visit] for visit in visits if visit in walk.layouts)),
            places=[Place(file, at, at, "") for file, at in dict.fromkeys(sources)],
            departures=[d for d in self.departures if _printed(d) == key],
        )

    def as_data(self) -> dict[str, Any]:
        """Everything that was found, as plain data."""
        seen = self.walk.run.lines
        return {
            "ok": self.ok,
            "algorithm": self.case.algorithm,
            "dtype": self.dtype,
            "departures": [
                {"algorithm": d.algorithm, "line": d.line, "value": d.what, "where": d.where, "kind": d.kind,
                 "text": d.text, "choices": dict(d.choices), "seen_in": d.seen_in}
                for d in self.departures
            ],
            "values": [
                {"key": seen[visit].key.id, "algorithm": seen[visit].key.algorithm, "line": seen[visit].key.line,
                 "verdict": verdict, "held_by": self.walk.layouts.get(visit)}
                for visit, verdict in self.walk.status.items()
            ],
            "variant": self.is_variant,
            "notes": self.notes,
        }  # fmt: skip


def merged(departures: list[Departure]) -> list[Departure]:
    """Departures of the same line with the same text as one, with all places."""
    found: dict[Any, Departure] = {}
    for d in departures:
        visit = (d.algorithm, d.line, d.what, d.kind, d.text)
        where = [found[visit].where] if visit in found else []
        choices = {**(found[visit].choices if visit in found else {}), **d.choices}
        where = ", ".join(dict.fromkeys([*where, d.where]))
        found[visit] = dataclasses.replace(found.get(visit, d), where=where, choices=choices)
    return list(found.values())


def _places(where: str) -> str:
    """Places one by one, but "layers 2 to 6, line 6" where more than two layers follow each other."""
    runs: list[list[str]] = []
    for place in where.split(", "):
        follows = runs and re.sub(r"\d+", lambda n: str(int(n[0]) + 1), runs[-1][-1], count=1) == place
        runs = [*runs[:-1], [*runs[-1], place]] if follows else [*runs, [place]]
    return ", ".join(_layers(run[0], run[-1]) if len(run) > 2 else ", ".join(run) for run in runs)


def _layers(first: str, last: str) -> str:
    """Such as "layers 2 to 6, line 6" from "l2/6" to "l6/6"."""
    stack, l, line = re.fullmatch(r"([a-z]+)(\d+)/(.*)", first).groups()  # type: ignore[union-attr]
    l_last = last.removeprefix(stack).partition("/")[0]
    return f"{STACKS[stack]} {l} to {l_last}, line {line}"


def sentence(d: Departure) -> str:
    """A departure in words: the line, where, its formula, what the code has instead, and in which operation."""
    lines = PSEUDOCODE[d.algorithm]
    formula = lines.line(d.line).text if d.line in lines.order else ""
    where = _places(re.sub(r"/[qk]\b", "", d.where))  # which of both the line says
    what, where = f" ({d.what})" if d.what else "", f" in {where}" if where not in ("", "everywhere") else ""
    equal = "equal if " if d.kind in ("named", "harmless") else ""
    loader = ": so does the code, or your loading of θ" if d.may_be_loading else ""
    seen = f"\n    in {d.seen_in}" if d.seen_in else ""
    return f"Algorithm {d.algorithm}, line {d.line}{what}{where}: {formula}\n    {equal}{d.text}{loader}{seen}"


def _printed(of: Key | Departure) -> tuple[int, str]:
    """An algorithm, and the number that a line is printed with."""
    return of.algorithm, "1" if of.algorithm == 7 else of.line


def write_report(report: Report, folder: pathlib.Path) -> pathlib.Path:
    """Write the report as a page, with a page for each foreign source file; returns the page's path."""
    from training.crosscheck.book.listing import excerpts, listing, page_of  # noqa: PLC0415  # Jinja and Pygments
    from training.crosscheck.book.pages import write_pages  # noqa: PLC0415

    rows = list(report.lines.values())
    files = {pathlib.Path(place.file) for row in rows for place in row.places}
    root = pathlib.Path(os.path.commonpath([file.parent for file in files])).parent if files else folder
    names = {str(file): file.relative_to(root).as_posix() for file in sorted(files)}
    sides = []
    for n in dict.fromkeys(row.algorithm for row in rows):
        own = [
            dataclasses.replace(row, places=[dataclasses.replace(of, file=names[of.file]) for of in row.places])
            for row in rows
            if row.algorithm == n
        ]
        sides.append({"algorithm": PSEUDOCODE[n], "results": own, "excerpts": excerpts(own, root)})
    variables = {"report": report, "sides": sides}
    pages: dict[str, tuple[str, dict[str, Any]]] = {"index.html": ("report.html", variables)}
    for file, name in names.items():
        pages[page_of(name)] = ("source.html", {"file": name, "lines": listing(pathlib.Path(file))})
    return write_pages(folder, pages)
