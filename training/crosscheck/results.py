"""The result of comparing every line of the paper with our own code."""

import dataclasses
from typing import Any, ClassVar

from .algorithms import PSEUDOCODE
from .backward import Rule
from .changes import ChangedLine
from .pseudocode import Line
from .report import Place, escaped
from .values import TOLERANCE

__all__ = ["Cell", "LineResult", "Results"]


@dataclasses.dataclass
class Cell:
    """All comparisons of a line in the runs of one algorithm."""

    variable: str  # what was compared
    caller: int = 0  # the algorithm whose runs call the line's; 0: in runs of the line's own
    shape: tuple[int, ...] | None = None  # the shape of its first value, as the paper has it
    values: int = 0  # how many values were compared
    largest_difference: float = 0.0
    where: str = ""  # the run and the visit that it comes from
    problem: str = ""  # what kept values from being compared

    def axes(self, line: Line) -> str:
        """The axes of a line's variable by name, and their sizes in this run."""
        if self.shape is None:
            return ""
        if not self.shape:
            return "the turn" if line.kind == "loop" else "a number"
        sizes = " × ".join(map(str, self.shape))
        if line.shape == "θ":
            return f"all {sizes} parameters"
        names = line.shape.split() if self.variable == line.variable else []
        return f"{' × '.join(names)} = {sizes}" if len(names) == len(self.shape) else sizes


@dataclasses.dataclass
class LineResult:
    """The result for a line of the pseudocode."""

    algorithm: int  # its algorithm
    number: str  # the number of the line
    places: list[Place] = dataclasses.field(default_factory=list)  # the code that executes it
    group: tuple[str, ...] = ()  # the lines that this code executes together
    # the comparisons, by variable, in the runs of the line's own algorithm
    cells: dict[str, Cell] = dataclasses.field(default_factory=dict)
    within: bool = False  # whether the line can only be seen in what its group produces
    change: ChangedLine | None = None  # how a variant has the line, where it changes it
    elsewhere: list[Cell] = dataclasses.field(default_factory=list)  # the comparisons in the runs of other algorithms

    @property
    def printed(self) -> Line:
        """The line as the paper has it."""
        return PSEUDOCODE[self.algorithm].line(self.number)

    @property
    def line(self) -> Line:
        """The line as the variant has it."""
        return self.printed if self.change is None else self.change.line

    @property
    def every_cell(self) -> list[Cell]:
        """The comparisons in all runs."""
        return [*self.cells.values(), *self.elsewhere]

    @property
    def worst(self) -> float:
        """The largest difference."""
        return max((cell.largest_difference for cell in self.every_cell), default=0.0)

    @property
    def where(self) -> str:
        """Source of the largest difference, or what is wrong."""
        worst = max(self.every_cell, key=lambda cell: (bool(cell.problem), cell.largest_difference), default=Cell(""))
        text = worst.problem or worst.where
        return f"Algorithm {worst.caller}: {text}" if text and worst.caller else text

    @property
    def verdict(self) -> str:
        """`"equal"`, `"within"` its group, `"different"`, `"missing"` without a counterpart, or `"left out"` by a variant."""
        if self.change is not None and self.change.left_out:
            return "different" if self.places else "left out"
        if not self.places:
            return "missing"
        if any(cell.problem or cell.largest_difference > TOLERANCE for cell in self.every_cell):
            return "different"
        if self.within:
            return "within"
        return "equal" if any(cell.values for cell in self.cells.values()) else "missing"

    @property
    def is_wrong(self) -> bool:
        """Whether it differs or has no counterpart."""
        return self.verdict in ("different", "missing")

    @property
    def wrong(self) -> list[str]:
        """What is wrong."""
        why = f" by {self.worst:.1e} ({self.where})" if self.verdict == "different" else ""
        return [f"{self.verdict}{why}"] if self.is_wrong else []

    @property
    def notes(self) -> list[str]:
        """What new symbols mean, and the paper's line, where a variant changes it."""
        return [] if self.change is None else [*self.change.notes, f"paper: {self.printed.text}"]

    def row(self) -> list[str]:
        """The line in the columns of `Results`."""
        code = "\n".join(f"[dim]{p.file}:{p.line}[/]\n{escaped(p.text)}" for p in self.places) or "—"
        if self.verdict == "within":
            return [code, "", "", "", f"in step {self.group[0]}–{self.group[-1]}"]
        cells, verdict = list(self.cells.values()), self.verdict
        variables = "\n".join(f"{cell.variable}, {cell.axes(self.line)}" for cell in cells)
        values = "\n".join(str(cell.values) for cell in cells)
        worst = f"{self.worst:.1e}" if cells else ""
        return [code, variables, values, worst, verdict.upper() if self.is_wrong else verdict]

    def as_data(self) -> dict[str, Any]:
        """Everything that was found, as plain data."""
        change = self.change
        return {
            "algorithm": self.algorithm,
            "name": PSEUDOCODE[self.algorithm].name,
            "line": self.number,
            "formula": self.line.text,
            "changed": change and {"printed": self.printed.text, "by": change.fields, "notes": change.notes},
            "code": [dataclasses.asdict(place) for place in self.places],
            "step": self.group,
            "variables": [
                dataclasses.asdict(cell) | {"largest_difference": _finite(cell.largest_difference)}
                for cell in self.cells.values()
            ],
            "values_in_other_algorithms": sum(cell.values for cell in self.elsewhere),
            "largest_difference": _finite(self.worst),
            "where": self.where,
            "verdict": self.verdict,
        }


@dataclasses.dataclass
class Results:
    """The result of a cross-check."""

    columns: ClassVar[dict[str, Any]] = {
        "code": {"ratio": 6},
        "variable, shape": {"ratio": 3},
        "values": {"justify": "right", "no_wrap": True},
        "largest difference": {"justify": "right", "max_width": 10},
        "verdict": {"no_wrap": True},
    }

    lines: dict[tuple[int, str], LineResult]  # each line of each algorithm that was run
    errors: dict[int, tuple[str, str]]  # what the runs of an algorithm raised, with the line that they raised it in
    settings: dict[str, Any]  # what was asked for
    # algorithm, line and place of the first difference, the likely cause of all; None if there is none
    first: tuple[int, str, str] | None = None
    done: list[int] = dataclasses.field(default_factory=list)  # the algorithms whose runs are compared
    taken: set[str] = dataclasses.field(default_factory=set)  # the implementations of attention that `"auto"` took
    rules: list[Rule] = dataclasses.field(default_factory=list)  # the backward rules of these algorithms, where checked

    @property
    def variant(self) -> str:
        """The name of the variant that was run; "" for the paper's lines."""
        return self.settings.get("variant", "")

    @property
    def title(self) -> str:
        """What the titles of tables begin with."""
        return f"{self.variant}: " if self.variant else ""

    @property
    def implementation(self) -> str:
        """The implementation requested, and the one that `"auto"` chose."""
        asked = self.settings["implementation"]
        return f"{asked} ({', '.join(sorted(self.taken))})" if self.taken else asked

    @property
    def failures(self) -> list[LineResult]:
        """The lines that differ or have no counterpart."""
        return [line for line in self.lines.values() if line.is_wrong]

    @property
    def worst(self) -> float:
        """The largest difference of all."""
        return max((result.worst for result in (*self.lines.values(), *self.rules)), default=0.0)

    @property
    def ok(self) -> bool:
        """Whether every line has its counterpart, and nothing differs."""
        return not (self.failures or self.errors) and all(rule.ok for rule in self.rules)

    def __str__(self) -> str:
        """Number of algorithms and lines compared, the worst difference, and what is wrong."""
        lines, n_rules = list(self.lines.values()), len(self.rules)
        verdicts = [line.verdict for line in lines]
        counts = [f"{verdicts.count('equal')} equal"]
        counts += [f"{n} in a step that is equal" for n in [verdicts.count("within")] if n]
        counts += [f"{n} left out" for n in [verdicts.count("left out")] if n]
        changed = f"{sum(line.change is not None for line in lines)} changed; " if self.variant else ""
        values = f"{sum(cell.values for line in lines for cell in line.every_cell)} values"
        values += f" and {_counted(n_rules, 'backward rule')}" if n_rules else ""
        text = (
            f"{self.title}implementation {self.implementation}: "
            f"{_counted(len({n for n, _ in self.lines}), 'algorithm')}, {_counted(len(lines), 'line')}: "
            f"{', '.join(counts)}; {changed}{values} compared; worst difference {self.worst:.1e} "
            f"(at most {TOLERANCE:.0e} passes)"
        )
        wrong = ["first difference: Algorithm {}, line {} ({})".format(*self.first)] if self.first else []
        wrong += [f"Algorithm {line.algorithm}, line {line.number}: {text}" for line in lines for text in line.wrong]
        wrong += [str(rule) for rule in self.rules if not rule.ok]
        wrong += [f"Algorithm {n}: raised in line {line}: {message}" for n, (line, message) in self.errors.items()]
        wrong += [f"not compared: {what}" for what in self.settings.get("left_out", ())]
        return "\n".join([text, *wrong])

    def as_data(self) -> dict[str, Any]:
        """Everything that was found, as plain data."""
        return {
            "ok": self.ok,
            "settings": self.settings,
            "taken": sorted(self.taken),
            "tolerance": TOLERANCE,
            "algorithms": len({algorithm for algorithm, _ in self.lines}),
            "worst_difference": _finite(self.worst),
            "first_difference": self.first,
            "errors": {str(n): {"line": line, "message": message} for n, (line, message) in self.errors.items()},
            "backward_rules": [
                {
                    "rule": rule.title,
                    "algorithms": rule.algorithms,
                    "code": {"file": rule.path.as_posix(), "line": rule.node.lineno},
                    "largest_differences": {name: _finite(apart) for name, apart in rule.gradients.items()},
                    "verdict": "equal" if rule.ok else "different",
                }
                for rule in self.rules
            ],
            "lines": [line.as_data() for line in self.lines.values()],
        }


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" + "s" * (n != 1)


def _finite(difference: float) -> float | str:
    """JSON has no infinity."""
    return difference if difference < float("inf") else "infinite"
