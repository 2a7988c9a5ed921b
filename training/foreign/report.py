"""The report of foreign code as a table for a terminal, as data, and as the result of a test."""

import dataclasses
from typing import Any
from xml.etree import ElementTree

from rich.console import Console

from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.comparison import Place
from training.crosscheck.pseudocode import Line
from training.crosscheck.report import escaped, table_of

from .checking import WORST, Report, merged
from .evidence import Departure

__all__ = ["Verdict", "as_data", "as_junit", "print_report", "verdicts"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a line of the paper."""

    algorithm: int
    line: Line
    verdict: str  # "DIFFERS" or one of `WORST`
    holders: list[str]  # the foreign tensors that hold its values, and their layouts
    places: list[Place]  # the source lines that compute these
    departures: list[Departure]  # what the code has instead


def verdicts(report: Report) -> list[Verdict]:
    """The verdict on each line with values in the case, by algorithm."""
    walk, found, departures = report.walk, [], merged(report.departures)
    keys = {visit: seen.key for visit, seen in walk.run.lines.items()}
    for n in sorted({key.algorithm for key in keys.values()}):
        for line in PSEUDOCODE[n].lines:
            own = [
                visit for visit, key in keys.items() if key.algorithm == n and line.number in (key.line, "1" * (n == 7))
            ]
            if not own:
                continue
            worst = next(status for status in WORST if status in {walk.status[visit] for visit in own})
            holders = list(dict.fromkeys(walk.layouts[visit] for visit in own if visit in walk.layouts))
            matches = [walk.run.lines[visit].match for visit in own]
            sources = [tensor.source for match in matches if match is not None for tensor in match.tensors]
            places = [Place(file, at, at, "") for file, at in dict.fromkeys(filter(None, sources))]
            departed = [d for d in departures if (d.algorithm, d.line) == (n, line.number)]
            found.append(Verdict(n, line, "DIFFERS" if departed else worst, holders, places, departed))
    return found


def print_report(report: Report, console: Console) -> None:
    """Print a table of the lines for each algorithm, then the departures."""
    rows = verdicts(report)
    for n in dict.fromkeys(row.algorithm for row in rows):
        table = table_of(n)
        for name, ratio in (("line", 1), ("formula", 6), ("where the code holds its values", 6), ("verdict", 2)):
            table.add_column(name, ratio=ratio)
        for row in (row for row in rows if row.algorithm == n):
            holders = "\n".join(row.holders[:4]) + ("\n…" if len(row.holders) > 4 else "")
            texts = map(escaped, ("  " * row.line.depth + row.line.text, holders))
            style = "red" if row.verdict in ("DIFFERS", "differs", "behind") else None
            table.add_row(row.line.number, *texts, row.verdict, style=style)
        console.print(table)
    console.print(str(report), markup=False, highlight=False, style="green" if report.ok else "bold red")


def as_data(report: Report) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    seen = report.walk.run.lines
    return {
        "ok": report.ok,
        "algorithm": report.case.algorithm,
        "dtype": report.dtype,
        "departures": [
            {"algorithm": d.algorithm, "line": d.line, "value": d.what, "where": d.where, "kind": d.kind, "text": d.text,
             "choices": dict(d.choices), "seen_in": d.seen_in}
            for d in merged(report.departures)
        ],
        "values": [
            {"key": seen[visit].key.id, "algorithm": seen[visit].key.algorithm, "line": seen[visit].key.line,
             "verdict": verdict, "held_by": report.walk.layouts.get(visit)}
            for visit, verdict in report.walk.status.items()
        ],
        "variant": report.is_variant,
        "notes": report.notes,
    }  # fmt: skip


def as_junit(report: Report) -> str:
    """A test for each numbered line in JUnit's XML, failed with what departs in it."""
    failed: dict[tuple[int, str], list[str]] = {}
    for d in merged(report.departures):
        if d.kind != "harmless":
            failed.setdefault((d.algorithm, d.line), []).append(f"{d.text} ({d.where})" if d.where else d.text)
    keys = [seen.key for seen in report.walk.run.lines.values()]
    tests = dict.fromkeys([*((key.algorithm, key.line) for key in keys), *failed])
    suite = ElementTree.Element(
        "testsuite", name="formal-crosscheck", tests=str(len(tests)), failures=str(len(failed)), errors="0"
    )
    for n, line in tests:
        test = ElementTree.SubElement(suite, "testcase", classname=f"Algorithm {n}", name=f"line {line}")
        for text in failed.get((n, line), ()):
            ElementTree.SubElement(test, "failure", message=text).text = text
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode") + "\n"
