"""The cross-check's result as tables for a terminal and as JSON."""

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from .algorithms import PSEUDOCODE
from .backward import Rule
from .comparison import Cell, LineResult, Results
from .values import TOLERANCE

__all__ = ["as_json", "escaped", "print_results", "summary", "table_of"]


def print_results(results: Results, console: Console, *, tables: bool = True) -> None:
    """Print a table for each algorithm, then the summary; without tables, only what differs."""
    for n in sorted({algorithm for algorithm, _ in results.lines}):
        own = [result for (m, _), result in results.lines.items() if m == n]
        if tables or n in results.errors or any(result in results.failures for result in own):
            console.print(_table(n, own, results.variant))
        if n in results.errors:
            line, message = results.errors[n]
            console.print(f"Algorithm {n}, line {line}: {message}", style="bold red", markup=False)
        if tables:
            console.print()
    console.print(
        summary(results), markup=False, highlight=False, soft_wrap=True, style="green" if results.ok else "bold red"
    )


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" + "s" * (n != 1)


def summary(results: Results) -> str:
    """Number of algorithms and lines compared, the worst difference, and what is wrong."""
    lines = list(results.lines.values())
    seen = sum(result.verdict == "equal" for result in lines)
    within = sum(result.verdict == "within" for result in lines)
    values = sum(cell.visits for result in lines for cell in result.every_cell)
    changed = sum(result.change is not None for result in lines)
    left_out = sum(result.verdict == "left out" for result in lines)
    text = (
        f"{f'{results.variant}: ' if results.variant else ''}implementation {results.implementation}: "
        f"{_counted(len({r.algorithm for r in lines}), 'algorithm')}, {_counted(len(lines), 'line')}: {seen} equal"
        f"{f', {within} in a step that is equal' if within else ''}{f', {left_out} left out' if left_out else ''}; "
        f"{f'{changed} changed; ' if results.variant else ''}{values} values{_and_rules(results)} compared; worst difference "
        f"{results.worst:.1e} (at most {TOLERANCE:.0e} passes)"
    )
    wrong = ["first difference: Algorithm {}, line {} ({})".format(*results.first)] if results.first else []
    wrong += [f"Algorithm {r.algorithm}, line {r.line.number}: {r.verdict}{_why(r)}" for r in results.failures]
    wrong += [_of_rule(rule) for rule in results.rules if not rule.ok]
    wrong += [f"Algorithm {n}: raised in line {line}: {message}" for n, (line, message) in results.errors.items()]
    wrong += [f"not compared: {what}" for what in results.settings.get("left_out", ())]
    return "\n".join([text, *wrong])


def _and_rules(results: Results) -> str:
    n = len(results.rules)
    return f" and {n} backward rule{'s' if n > 1 else ''}" if n else ""


def _of_rule(rule: Rule) -> str:
    """Which gradients a hand-derived rule gets wrong."""
    apart = (f"∂F/∂{name} by {x:.1e}" for name, x in rule.gradients.items() if x > TOLERANCE)
    of = f"Algorithm{'s' if len(rule.algorithms) > 1 else ''} {', '.join(map(str, rule.algorithms))}"
    wrong = rule.error or f"differs from JAX's derivative of the lines as printed: {', '.join(apart)}"
    return f"{of}: the backward rule of {rule.title} ({rule.path.as_posix()}:{rule.node.lineno}) {wrong}"


def shape_text(result: LineResult, cell: Cell) -> str:
    """The axes of a line's variable by name, and their sizes in this run."""
    if cell.shape is None:
        return ""
    if not cell.shape:
        return "the turn" if result.line.kind == "loop" else "a number"
    sizes = " × ".join(map(str, cell.shape))
    if result.line.shape == "θ":
        return f"all {sizes} parameters"
    names = [name for name in result.line.shape.split() if cell.variable == result.line.variable]
    return f"{' × '.join(names)} = {sizes}" if len(names) == len(cell.shape) else sizes


def as_json(results: Results) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "ok": results.ok,
        "settings": results.settings,
        "taken": sorted(results.taken),
        "tolerance": TOLERANCE,
        "algorithms": len({algorithm for algorithm, _ in results.lines}),
        "worst_difference": _finite(results.worst),
        "first_difference": results.first,
        "errors": {str(n): {"line": line, "message": message} for n, (line, message) in results.errors.items()},
        "backward_rules": [
            {
                "rule": rule.title,
                "algorithms": rule.algorithms,
                "code": {"file": rule.path.as_posix(), "line": rule.node.lineno},
                "largest_differences": {name: _finite(apart) for name, apart in rule.gradients.items()},
                "verdict": "equal" if rule.ok else "different",
            }
            for rule in results.rules
        ],
        "lines": [_line_as_json(result) for result in results.lines.values()],
    }


def _line_as_json(result: LineResult) -> dict[str, Any]:
    return {
        "algorithm": result.algorithm,
        "name": PSEUDOCODE[result.algorithm].name,
        "line": result.line.number,
        "formula": result.line.text,
        "changed": None
        if result.change is None
        else {"printed": result.printed.text, "by": result.change.fields, "notes": result.change.notes},
        "code": [dataclasses.asdict(place) for place in result.places],
        "step": result.group,
        "variables": [
            {
                "variable": cell.variable,
                "shape": cell.shape,
                "values": cell.visits,
                "largest_difference": _finite(cell.worst),
                "where": cell.where,
                "problem": cell.problem,
            }
            for cell in result.cells.values()
        ],
        "values_in_other_algorithms": sum(c.visits for cells in result.elsewhere.values() for c in cells),
        "largest_difference": _finite(result.worst),
        "where": result.where,
        "verdict": result.verdict,
    }


def _finite(difference: float) -> float | str:
    """JSON has no infinity."""
    return difference if difference < float("inf") else "infinite"


def _why(result: LineResult) -> str:
    return f" by {result.worst:.1e} ({result.where})" if result.verdict == "different" else ""


def table_of(n: int, prefix: str = "") -> Table:
    """An algorithm's table, without columns."""
    return Table(
        title=f"{prefix}Algorithm {n}  {PSEUDOCODE[n].text}", title_justify="left", title_style="bold", expand=True
    )


def _table(n: int, results: list[LineResult], variant: str) -> Table:
    table = table_of(n, f"{variant}: " if variant else "")
    table.add_column("line", justify="right", no_wrap=True)
    for name, ratio in (("formula", 5), ("code", 6), ("variable, shape", 3)):
        table.add_column(name, ratio=ratio)
    table.add_column("values", justify="right", no_wrap=True)
    table.add_column("largest difference", justify="right", max_width=10)
    table.add_column("verdict", no_wrap=True)
    for result in results:
        table.add_row(*_row(result), style="red" if result.verdict in ("different", "missing") else None)
    return table


def _formula(result: LineResult) -> str:
    """The line; where a variant changes it, marked, with the paper's below."""
    indent = "  " * result.line.depth
    if result.change is None:
        return escaped(indent + result.line.text)
    notes = "".join(f"\n{indent}  [dim]{escaped(note)}[/]" for note in result.change.notes)
    return (
        f"[bold]{escaped(f'{indent}≠ {result.line.text}')}[/]{notes}\n"
        f"{indent}  [dim]paper: {escaped(result.printed.text)}[/]"
    )


def _row(result: LineResult) -> tuple[str, ...]:
    code = "\n".join(f"[dim]{p.file}:{p.line}[/]\n{escaped(p.text)}" for p in result.places) or "—"
    cells = list(result.cells.values())
    variables = "\n".join(f"{cell.variable}, {shape_text(result, cell)}" for cell in cells)
    values = "\n".join(str(cell.visits) for cell in cells)
    formula, verdict = _formula(result), result.verdict
    if result.verdict == "within":
        return result.line.number, formula, code, "", "", "", f"in step {result.group[0]}–{result.group[-1]}"
    worst = f"{result.worst:.1e}" if cells else ""
    verdict = verdict if verdict in ("equal", "left out") else verdict.upper()
    return result.line.number, formula, code, variables, values, worst, verdict


def escaped(text: str) -> str:
    """A text whose brackets are not markup."""
    return text.replace("[", r"\[")
