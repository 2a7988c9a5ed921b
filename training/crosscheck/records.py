"""What one run computed for each line, visit by visit, in a form that is the same for the oracle and for the code.

A visit is one execution of a line for one sequence, one head and all its tokens: the code does all heads at once, the
oracle takes layer norms token by token, and both come out as the same list of visits here.
"""

import contextlib
import dataclasses
from collections import defaultdict
from typing import Any

import numpy as np

from training.crosscheck import oracle

from .algorithms import PSEUDOCODE
from .pseudocode import Also, Line
from .tags import Statement, numbers
from .tracing import Call, Event
from .values import AbstractValueError, mapped, tree

__all__ = ["CodeRecord", "Key", "OracleRecord", "Site", "Visit", "seen_in"]

Key = tuple[int, str, str]  # an algorithm, its line, the variable
GRADIENT = "complex_step_gradient"  # evaluates the loss once for each parameter
OF_COLUMNS = {1, 2, 6, 7}
"""Algorithms of one token, which transformers run for every column of a matrix."""


@dataclasses.dataclass(frozen=True)
class Visit:
    """A value of a line.

    Attributes:
        value: the array, or the arrays of a tree by path.
        sequence: the number of the sequence in a batch; None where there is one only, or it is the same for all.
        head: the number of the head; None outside attention.
        order: how many values of the run were there before.
        where: the turns of the loops around it, such as "layer 2, head 1".
    """

    value: Any
    sequence: int | None
    head: int | None
    order: int
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a line was seen.

    Attributes:
        statement: the statement; without tags, it is the function's return.
        group: all lines of the algorithm that it does.
        visits: what it computed.
    """

    statement: Statement | None
    group: tuple[str, ...]
    visits: list[Visit]


def seen_in(line: Line, group: tuple[str, ...]) -> bool:
    """Whether a line can be seen in a statement that does a group of lines: not what is only on the way to its value."""
    if line.kind in ("loop", "length") and line.number == group[0]:
        return True
    return line.kind != "loop" and (
        line.number == group[-1] or (line.product and str(int(line.number) + 1) == group[-1])
    )


def _order(algorithm: int) -> tuple[str, ...]:
    return tuple(line.number for line in PSEUDOCODE[algorithm].lines)


class OracleRecord:
    """The visits of the oracle's lines. An instance observes a run: give it to `traced`."""

    def __init__(self) -> None:
        self.visits: dict[Key, list[Visit]] = defaultdict(list)
        self.sequence: int | None = None
        self._order = 0
        self._columns: dict[tuple[Key, Call, Statement | None], int] = {}
        self._functions: dict[Key, str] = {}
        self._ends: dict[tuple[Key, Call], int] = {}
        self._derivatives: set[Call] = set()

    def __call__(self, event: Event) -> bool:
        call = event.call
        if event.kind == "call":
            return self._is_repeated(call)
        if event.kind == "result":
            self._result(event)
        elif event.statement is not None and call.algorithm is not None:
            for number in numbers(event.statement.tags, call.algorithm, _order(call.algorithm)):
                line = PSEUDOCODE[call.algorithm].line(number)
                if line.kind == "end":
                    self._end(line, event.value, call)
                elif (event.kind == "turn") == (line.kind == "loop") and not callable(event.value):
                    self._add(line, line.variable, event.value, call)
                    self._derive(line, event.value, call)
                    if line.each:
                        of_column = PSEUDOCODE[line.each].lines[-1]
                        self._add(of_column, of_column.variable, event.value, call, line.each)
                    for also in line.also:
                        if isinstance(also.paper, str):
                            self._add(line, also.variable, event.names[also.paper], call)
        return False

    def _is_repeated(self, call: Call) -> bool:
        """Whether this is a loss evaluated for one more component of the gradient: the first shows all lines."""
        if call.parent is None or call.parent.function.name != GRADIENT or call.function.algorithm is None:
            return False
        repeated = call.parent in self._derivatives
        self._derivatives.add(call.parent)
        return repeated

    def _result(self, event: Event) -> None:
        for call in event.call.ancestors():
            if call.statement is None or call.algorithm is None:
                continue
            for number in numbers(call.statement.tags, call.algorithm, _order(call.algorithm)):
                line = PSEUDOCODE[call.algorithm].line(number)
                for also in line.also:
                    if also.paper == (event.call.function.name, None):
                        self._add(line, also.variable, event.value, call)
            return

    def _derive(self, line: Line, value: Any, call: Call) -> None:
        """The lines that have no statement of their own in the oracle: loops over tokens, and the ends of loops."""
        assert call.algorithm is not None
        for other in PSEUDOCODE[call.algorithm].lines:
            if other.of != line.number:
                continue
            if other.kind == "loop":
                self._add(other, other.variable, np.arange(1, len(value) + 1), call)
                continue
            key = (call.algorithm, other.number, other.variable)
            at = len(self.visits[key])
            if other.depth == 0 and self._ends.setdefault((key, call), at) < at:
                self.visits[key].pop()
            self._add(other, other.variable, value, call)

    def _end(self, line: Line, value: Any, call: Call) -> None:
        """What a model does behind a loop, in place of what the loop leaves."""
        assert call.algorithm is not None
        visits = self.visits[call.algorithm, line.number, line.variable]
        visits[-1] = dataclasses.replace(visits[-1], value=_of_oracle(value))

    def _add(self, line: Line, variable: str, value: Any, call: Call, of_all_columns: int = 0) -> None:
        """Note a value of a line: of the call's algorithm, or of one that the call does for all columns at once."""
        assert call.algorithm is not None
        key = (of_all_columns or call.algorithm, line.number, variable)
        array = _of_oracle(value)
        where, head = _where(call)
        if key[0] in OF_COLUMNS and head is not None:
            return  # a norm of queries and keys, which is seen in their products
        if self._functions.setdefault(key, call.function.name) != call.function.name:
            return  # a line that two functions spell out, such as a length, is recorded once
        visits, head = self.visits[key], None if line.kind == "loop" else head
        self._order += 1
        if key[0] in OF_COLUMNS and not of_all_columns:
            array = array[..., None]
            if call.parent is not None:
                at = self._columns.setdefault((key, call.parent, call.parent.statement), len(visits))
                if at < len(visits):
                    visits[at] = dataclasses.replace(
                        visits[at], value=np.concatenate([visits[at].value, array], axis=-1)
                    )
                    return
        visits.append(Visit(array, self.sequence, head, self._order, where))


def _of_oracle(value: Any) -> Any:
    """An array of the oracle's value: lists of columns stacked, the real part of complex steps."""
    if hasattr(value, "__dict__"):
        return oracle.flatten(value)
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        value = np.stack(value, axis=-1)
    return np.real(np.array(value))


def _where(call: Call) -> tuple[str, int | None]:
    """The loops around a call, named; and the head that it is for."""
    turns, head = [], None
    for ancestor in call.ancestors():
        for first, turn in reversed(ancestor.turns.items()):
            statement = ancestor.function.statements[first]
            for tag in statement.tags:
                algorithm = tag.algorithm or ancestor.algorithm or 0
                label = PSEUDOCODE[algorithm].line(tag.first).label
                turns.append(f"{label} {turn}")
                if label == "head" and head is None:
                    head = turn - 1
    return ", ".join(reversed(turns)), head


class CodeRecord:
    """Where the code's lines were seen, and with which values. An instance observes a run: give it to `traced`."""

    def __init__(self, batched: bool) -> None:
        self.batched = batched
        self.sites: dict[Key, dict[tuple[Statement | None, str], Site]] = defaultdict(dict)
        self._order = 0
        self._turns: dict[Call | None, int] = defaultdict(int)

    def __call__(self, event: Event) -> bool:
        call, statement = event.call, event.statement
        if event.kind == "result":
            self._result(event)
        elif statement is not None and call.algorithm is not None:
            order = _order(call.algorithm)
            group = numbers(statement.tags, call.algorithm, order)
            for line in PSEUDOCODE[call.algorithm].lines:
                if line.number in group:
                    self._see(line, group, event)
                elif line.code_line in group and event.kind == "value":  # the end of a loop
                    self._see(line, (line.number,), dataclasses.replace(event, statement=statement.end))
        return False

    def _see(self, line: Line, group: tuple[str, ...], event: Event) -> None:
        assert event.call.algorithm is not None
        how = event.names.get("how")
        if line.number == "return" and how is not None and how.hidden:
            return  # the hidden state, with which the caller goes on
        if not seen_in(line, group):
            key = (event.call.algorithm, line.number, line.variable)
            self.sites[key].setdefault((event.statement, event.kind), Site(event.statement, group, []))
        elif line.kind == "loop":
            self._see_loop(line, group, event)
        elif event.kind != "turn":
            with contextlib.suppress(AbstractValueError):
                value = event.value
                if line.kind == "length":  # of the positions, or of the matrix of embeddings
                    value = mapped(value)[0].shape[-1]
                elif line.code is not None and line.number == group[-1]:
                    value = line.code(value, dict(event.names))
                self._add(line, line.variable, line.shape, value, event, group)
            for also in line.also:
                if isinstance(also.code, str) and also.code in event.names:
                    self._add(line, also.variable, also.shape, event.names[also.code], event, group)

    def _see_loop(self, line: Line, group: tuple[str, ...], event: Event) -> None:
        """The turns of a loop: told one by one, or the times that its condition held, or an axis of what it made."""
        call, statement = event.call, event.statement
        turns: list[Any] = []
        if event.kind == "turn":
            turns = [event.value]
        elif statement is not None and statement.returns and mapped(event.value)[0].dtype == bool:
            if mapped(event.value)[0]:
                self._turns[call.parent] += 1
                turns = [self._turns[call.parent]]
        elif line.label == "head":
            assert call.algorithm is not None
            product = PSEUDOCODE[call.algorithm].line(group[-1])
            heads = {head for _, head, _ in self._split(event.value, product.shape, call.algorithm)}
            turns = list(range(1, len(heads) + 1))
        elif line.label == "token":
            turns = [np.arange(1, mapped(event.value)[0].shape[-1] + 1)]
        for turn in turns:
            self._add(line, line.variable, "l" if line.label == "token" else "", turn, event, group)

    def _result(self, event: Event) -> None:
        """What an untagged `return` gives, and what a function hands to the line that calls it."""
        call, cause = event.call, event.call.cause
        if call.function.is_algorithm and call.algorithm is not None:
            line = PSEUDOCODE[call.algorithm].lines[-1]
            if line.number == "return":
                self._see(line, ("return",), dataclasses.replace(event, statement=call.function.result))
        if cause is None or cause.statement is None or cause.algorithm is None:
            return
        algorithm = cause.algorithm
        group = numbers(cause.statement.tags, algorithm, _order(algorithm))
        for line in PSEUDOCODE[algorithm].lines:
            for also in line.also:
                if line.number in group and not isinstance(also.code, str) and also.code[0] == call.function.name:
                    at = dataclasses.replace(event, call=cause, statement=cause.statement)
                    with contextlib.suppress(AbstractValueError):
                        self._add(line, also.variable, also.shape, _finished(also, event), at, group)

    def _add(self, line: Line, variable: str, shape: str, value: Any, event: Event, group: tuple[str, ...]) -> None:
        assert event.call.algorithm is not None
        key = (event.call.algorithm, line.number, variable)
        try:
            values = self._split(value, shape, event.call.algorithm)
        except AbstractValueError:
            return
        site = self.sites[key].setdefault((event.statement, event.kind), Site(event.statement, group, []))
        for sequence, head, array in values:
            if key[0] in OF_COLUMNS and head is not None:
                continue  # as in the oracle's record
            self._order += 1
            site.visits.append(Visit(array, sequence, head, self._order))

    def _split(self, value: Any, shape: str, algorithm: int) -> list[tuple[int | None, int | None, Any]]:
        """One value for each sequence of the batch and each head: `(sequence, head, value)`."""
        if shape == "θ":
            return [(None, None, tree(value))]
        array, in_front = mapped(value)
        rank = len(shape.split())
        if algorithm in OF_COLUMNS and array.ndim < rank:
            array = array[..., None]
        extra = array.ndim - rank
        batch = int(self.batched and extra > 0)
        if extra > 0 and batch and in_front < extra:  # [*heads, *rows, sequences, columns]
            array = np.moveaxis(array, array.ndim - 2 if rank > 0 else 0, extra - 1)
        found, in_front = [], array.shape[: max(extra, 0)]
        for index in np.ndindex(in_front):
            head = index[0] if len(index) > batch else None
            found.append((index[-1] if batch and in_front[-1] > 1 else None, head, array[index]))
        return found


def _finished(also: Also, event: Event) -> Any:
    assert not isinstance(also.code, str)
    name = also.code[1]
    value = mapped(event.value if name is None else event.names[name])[0]
    return value if also.finish is None else also.finish(value)
