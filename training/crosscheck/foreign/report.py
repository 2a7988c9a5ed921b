"""The report of foreign code as a table for a terminal, as data, and as the result of a test."""

from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from training.crosscheck.algorithms import PSEUDOCODE

from .checking import Report, merged

__all__ = ["as_data", "as_junit", "print_report"]

WORST = ("differs", "behind", "not shown", "in step", "equal")
"""What is said of a line that has several values: the first that one of them is."""


def print_report(report: Report, console: Console) -> None:
    """Print a table of the lines for each algorithm, then the departures."""
    ids = {visit: seen.key for visit, seen in report.walk.run.lines.items()}
    departed = {(d.algorithm, d.line) for d in report.departures}
    for n in sorted({key.algorithm for key in ids.values()}):
        table = Table(
            title=f"Algorithm {n}  {PSEUDOCODE[n].text}", title_justify="left", title_style="bold", expand=True
        )
        for name, ratio in (("line", 1), ("formula", 6), ("where the code holds its values", 6), ("verdict", 2)):
            table.add_column(name, ratio=ratio)
        for line in PSEUDOCODE[n].lines:
            own = [
                visit for visit, key in ids.items() if key.algorithm == n and line.number in (key.line, "1" * (n == 7))
            ]
            if not own:
                continue
            found = {report.walk.status[visit] for visit in own}
            verdict = "DIFFERS" if (n, line.number) in departed else next(status for status in WORST if status in found)
            where = dict.fromkeys(report.walk.layouts[visit] for visit in own if visit in report.walk.layouts)
            texts = ["  " * line.depth + line.text, "\n".join(list(where)[:4]) + ("\n…" if len(where) > 4 else "")]
            style = "red" if verdict in ("DIFFERS", "differs", "behind") else None
            table.add_row(line.number, *(text.replace("[", r"\[") for text in texts), verdict, style=style)
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
