"""The form of what the paper prints: an algorithm, a list of lines with a formula and the variable it assigns.

Variables have the names they have as locals of the oracle and, unless `finish` says otherwise, of the code.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from .latex import latex_of

__all__ = ["Algorithm", "Line", "as_printed"]

Locals = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the pseudocode."""

    text: str  # the formula in Unicode
    variable: str  # what the line assigns; of a loop, the counter
    shape: str = ""  # names of the variable's axes, the token axis last; "" for a number
    # of a loop: what one turn of it is called. Turns that are not taken one by one are seen in a value: the heads and
    # the tokens are axes of it
    label: str = ""
    # from the value of the code's statement and the locals there to the value that the line speaks of
    finish: Callable[[Any, Locals], Any] | None = None
    over: str = ""  # the range of the line's sum, where the text has only its index
    product: bool = False  # whether the value is also that of the next line, so that both can be seen in one statement
    each: int = 0  # the algorithm that computes a column of the value, where the paper writes out its formula
    remark: str = ""  # the paper's comment above the line
    also: "Line | None" = None  # a further quantity, whose statement has the line's tag, too
    local: str = ""  # of this, its name in the code
    greedy: bool = True  # whether it means the same at temperature 0
    # "value" assigns; "loop" repeats what is indented below it; "end" closes a loop; "length" is the length of an
    # input, which is also how many columns a matrix of its tokens has, and differs where the code's input is padded
    kind: Literal["value", "loop", "end", "length"] = "value"
    number: str = ""  # as printed; "return" for an unnumbered return
    depth: int = 0  # loops around the line
    loop: str = ""  # of an end, the number of the line that begins the loop

    @property
    def latex(self) -> str:
        """The formula in LaTeX."""
        return latex_of(self.text.replace(f"Σ_{self.over[0]}", f"Σ_{{{self.over}}}") if self.over else self.text)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An algorithm of the paper."""

    number: int  # 1 to 15
    name: str  # the paper's name of it
    text: str  # its signature in Unicode
    inputs: tuple[tuple[str, str], ...]  # its input, output and parameters, each `(word, LaTeX)`
    lines: tuple[Line, ...]  # its lines in order

    @property
    def latex(self) -> str:
        """Its signature in LaTeX."""
        return latex_of(self.text)

    @property
    def order(self) -> tuple[str, ...]:
        """The numbers of its lines."""
        return tuple(line.number for line in self.lines)

    def line(self, number: str) -> Line:
        """The line that is printed with a number."""
        return self.lines[self.order.index(number)]


def as_printed(number: int, name: str, text: str, inputs: str, *lines: Line) -> Algorithm:
    """An algorithm with a row for each of its inputs; its lines are numbered in order, as deep as they are indented."""
    found: list[Line] = []
    for i, line in enumerate(lines, 1):
        printed = line.text.lstrip()
        depth = (len(line.text) - len(printed)) // 2
        own = str(i) if number == 7 or not printed.startswith("return") else "return"
        kind = "loop" if line.label else "end" if printed == "end" else line.kind
        loops = [before.number for before in found if before.kind == "loop" and before.depth == depth]
        loop = loops[-1] if kind == "end" else ""
        also = line.also and dataclasses.replace(line.also, number=own)
        found.append(dataclasses.replace(line, text=printed, number=own, depth=depth, kind=kind, loop=loop, also=also))
    rows = [" ".join(row.split()).partition(" ") for row in re.split(r"\n(?=\S)", inspect.cleandoc(inputs))]
    return Algorithm(number, name, text, tuple((word, latex) for word, _, latex in rows), tuple(found))
