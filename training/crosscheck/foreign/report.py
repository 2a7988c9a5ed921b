"""The report of foreign code as a table for a terminal."""

from rich.console import Console
from rich.table import Table

from training.crosscheck.algorithms import PSEUDOCODE

from .checking import Report

__all__ = ["print_report"]

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
