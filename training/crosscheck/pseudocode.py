"""What the paper prints: fifteen algorithms, each a list of lines with a formula and the variable it assigns.

The texts are Phuong and Hutter's pseudocode (arXiv:2207.09238) in its own numbering. `text` is for a terminal, `latex`
for the book. Variables have the names they have as locals of the oracle and, unless `code` says otherwise, of the code.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

__all__ = ["Also", "Algorithm", "Line"]

Locals = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Also:
    """A second quantity of a line.

    Attributes:
        variable: its name.
        shape: names of its axes.
        paper: how it is read off the oracle: `(function, local name)`, the local of a function that the line calls, or
            just a local name, of the function the line stands in; None as local name is what the function returns.
        code: the same in the code.
        finish: from the code's local to the quantity.
        greedy: whether it means the same at temperature 0.
    """

    variable: str
    shape: str
    paper: tuple[str, str | None] | str
    code: tuple[str, str | None] | str
    finish: Callable[[Any], Any] | None = None
    greedy: bool = True


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the pseudocode.

    Attributes:
        number: as printed; "return" for an unnumbered return.
        text: the formula in Unicode.
        latex: the formula in LaTeX.
        variable: what the line assigns; of a loop, the counter.
        shape: names of the variable's axes, the token axis last; "" for a number.
        kind: "value" assigns; "loop" repeats what is indented below it; "end" closes a loop; "length" is the length of
            an input, which is also how many columns a matrix of its tokens has, and differs where the code's input is
            padded.
        depth: loops around the line.
        label: of a loop: what one turn of it is called. Turns that are not taken one by one are seen in a value: the
            heads and the tokens are axes of it.
        of: the line whose value the oracle's record is taken from, where the oracle has none of its own.
        code: from the value of the code's statement and the locals there to the value that the line speaks of.
        code_line: for the end of a loop, the line by which the code's loop is tagged; its body's last statement is the end.
        product: whether the value is also that of the next line, so that both can be seen in one statement.
        each: the algorithm that computes a column of the value, where the paper writes out its formula.
        remark: the paper's comment above the line.
        also: further quantities.
    """

    number: str
    text: str
    latex: str
    variable: str
    shape: str = ""
    kind: Literal["value", "loop", "end", "length"] = "value"
    depth: int = 0
    label: str = ""
    of: str = ""
    code: Callable[[Any, Locals], Any] | None = None
    code_line: str = ""
    product: bool = False
    each: int = 0
    remark: str = ""
    also: tuple[Also, ...] = ()


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An algorithm of the paper.

    Attributes:
        number: 1 to 15.
        name: the paper's name of it.
        text: its signature in Unicode.
        latex: its signature in LaTeX.
        inputs: its input, output and parameters, each `(word, LaTeX)`.
        lines: its lines in order.
    """

    number: int
    name: str
    text: str
    latex: str
    inputs: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]

    def line(self, number: str) -> Line:
        """The line that is printed with a number."""
        return next(line for line in self.lines if line.number == number)
