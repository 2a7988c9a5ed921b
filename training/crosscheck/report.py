"""The report of a check: tables for a terminal, and the result of a test.

`result`: the `Results` of our own code, or `training.foreign.report.Report` of anybody's; its lines are by algorithm and
number, and their rows in its columns.
"""

import dataclasses
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from .algorithms import PSEUDOCODE

__all__ = ["Place", "as_junit", "escaped", "print_report"]


@dataclasses.dataclass(frozen=True)
class Place:
    """A statement of the code."""

    file: str
    line: int
    last: int
    text: str


def print_report(result: Any, console: Console, *, tables: bool = True) -> None:
    """Print a table for each algorithm, then the summary; without tables, only what is wrong."""
    columns: dict[str, Any] = {"formula": {"ratio": 5}} | result.columns
    for n in sorted({n for n, _ in result.lines}):
        own = [line for (m, _), line in result.lines.items() if m == n]
        if tables or any(line.is_wrong for line in own):
            title = f"{result.title}Algorithm {n}  {PSEUDOCODE[n].text}"
            table = Table(title=title, title_justify="left", title_style="bold", expand=True)
            table.add_column("line", justify="right", no_wrap=True)
            for name, options in columns.items():
                table.add_column(name, **options)
            for line in own:
                style = "red" if line.is_wrong else None
                table.add_row(line.line.number, _formula(line), *line.row(), style=style)
            console.print(table)
        if tables:
            console.print()
    style = "green" if result.ok else "bold red"
    console.print(str(result), markup=False, highlight=False, soft_wrap=True, style=style)


def _formula(found: Any) -> str:
    """The line; where it is not the paper's, marked, with notes below."""
    indent, text = "  " * found.line.depth, found.line.text
    if not found.notes:
        return escaped(indent + text)
    return f"[bold]{escaped(f'{indent}≠ {text}')}[/]" + "".join(
        f"\n{indent}  [dim]{escaped(n)}[/]" for n in found.notes
    )


def as_junit(result: Any) -> str:
    """A test for each line in JUnit's XML, failed with what is wrong with it."""
    counts = {
        "tests": len(result.lines),
        "failures": sum(bool(line.wrong) for line in result.lines.values()),
        "errors": 0,
    }
    suite = ElementTree.Element("testsuite", {"name": "formal-crosscheck"} | {k: str(n) for k, n in counts.items()})
    for (n, number), line in result.lines.items():
        test = ElementTree.SubElement(suite, "testcase", classname=f"Algorithm {n}", name=f"line {number}")
        for text in line.wrong:
            ElementTree.SubElement(test, "failure", message=text).text = text
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def escaped(text: str) -> str:
    """A text whose brackets are not markup."""
    return text.replace("[", r"\[")
