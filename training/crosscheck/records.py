"""The values of each line in a run, visit by visit, in the same form for the oracle and the code.

A visit is one execution of a line for one sequence, one head and all its tokens: the code does all heads at once, the
oracle takes layer norms token by token, and both come out as the same list of visits here.
"""

import contextlib
import dataclasses
from collections import defaultdict
from typing import Any

import numpy as np

from training import oracle

from .algorithms import PSEUDOCODE
from .pseudocode import Algorithm, Also, Line
from .tags import Statement, numbers
from .tracing import Call, Event
from .values import AbstractValueError, mapped, tree

__all__ = ["CodeRecord", "Key", "OracleRecord", "Site", "Visit", "seen_in"]

Key = tuple[int, str, str]  # an algorithm, its line, the variable
Group = tuple[str, ...]  # all lines of an algorithm that a statement does
GRADIENT = "complex_step_gradient"  # evaluates the loss once for each parameter
OF_COLUMNS = {1, 2, 6, 7}
"""Algorithms of one token, which transformers run for every column of a matrix."""


@dataclasses.dataclass(frozen=True)
class Visit:
    """A value of a line."""

    value: Any  # the array, or the arrays of a tree by path
    # the number of the sequence in a batch; None where there is one only, or it is the same for all
    sequence: int | None
    head: int | None  # the number of the head; None outside attention
    order: int  # how many values of the run were there before
    where: str = ""  # the turns of the loops around it, such as "layer 2, head 1"


@dataclasses.dataclass(frozen=True)
class Site:
    """The place of a line: the statement (without tags, it is the function's return), its group, its visits."""

    statement: Statement | None
    group: Group
    visits: list[Visit]

    @property
    def is_tagged(self) -> bool:
        """Whether the statement has tags."""
        return self.statement is not None and bool(self.statement.tags)


def seen_in(line: Line, group: Group) -> bool:
    """Whether a line is seen in a statement that does a group of lines: not what is only on the way to its value."""
    if line.kind in ("loop", "length") and line.number == group[0]:
        return True
    return line.kind != "loop" and (
        line.number == group[-1] or (line.product and str(int(line.number) + 1) == group[-1])
    )


class _Record:
    """Observes a run, if given to `traced`: passes the values of lines on to `_add`."""

    def __call__(self, event: Event) -> bool:
        if event.kind == "call":
            return self._is_repeated(event.call)
        if event.kind == "result":
            self._result(event)
        elif event.statement is not None and event.call.algorithm is not None:
            algorithm = PSEUDOCODE[event.call.algorithm]
            group = self._group(event.statement, algorithm)
            for line in algorithm.lines:
                if event.kind == "end" and line.loop in group:
                    self._see(line, (line.number,), dataclasses.replace(event, statement=event.statement.end))
                elif event.kind != "end" and line.number in group:
                    self._see(line, group, event)
        return False

    def _see(self, line: Line, group: Group, event: Event) -> None:
        if line.kind == "loop" and seen_in(line, group):
            for turn in self._turns(line, group, event):
                self._add(line, line.variable, line.shape, turn, event, group)
        elif event.kind != "turn":
            self._add(line, line.variable, line.shape, event.value, event, group)

    def _turns(self, line: Line, group: Group, event: Event) -> list[Any]:
        """The turns of a loop: told one by one, or an axis of what it made."""
        if event.kind == "turn":
            return [event.value]
        return [np.arange(1, mapped(event.value)[0].shape[-1] + 1)] if line.label == "token" else []

    def _result(self, event: Event) -> None:
        """The value that a function returns to the line that calls it."""
        cause = event.call.cause
        if cause is not None and cause.statement is not None and cause.algorithm is not None:
            algorithm = PSEUDOCODE[cause.algorithm]
            group = self._group(cause.statement, algorithm)
            for line in algorithm.lines:
                also = line.also
                if also is not None and line.number in group and also.function == event.call.function.name:
                    at = dataclasses.replace(event, call=cause, statement=cause.statement)
                    self._add(line, also.variable, also.shape, self._local(also, event), at, group)

    def _group(self, statement: Statement, algorithm: Algorithm) -> Group:
        return numbers(statement.tags, algorithm.number, algorithm.order)

    def _is_repeated(self, call: Call) -> bool:
        return False

    def _local(self, also: Also, event: Event) -> Any:
        raise NotImplementedError

    def _add(self, line: Line, variable: str, shape: str, value: Any, event: Event, group: Group) -> None:
        raise NotImplementedError


class OracleRecord(_Record):
    """The visits of the oracle's lines."""

    def __init__(self) -> None:
        self.visits: dict[Key, list[Visit]] = defaultdict(list)
        self.sequence: int | None = None
        self._order = 0
        self._columns: dict[tuple[Key, Call, Statement | None], int] = {}
        self._derivatives: set[Call] = set()

    def _is_repeated(self, call: Call) -> bool:
        """Whether this is a loss evaluated for one more component of the gradient: the first shows all lines."""
        if call.parent is None or call.parent.function.name != GRADIENT or call.function.algorithm is None:
            return False
        repeated = call.parent in self._derivatives
        self._derivatives.add(call.parent)
        return repeated

    def _group(self, statement: Statement, algorithm: Algorithm) -> Group:
        """The lines of a statement; a loop over tokens is one expression, the loop's beginning and end, too."""
        group = super()._group(statement, algorithm)
        for end in (line for line in algorithm.lines if line.loop and algorithm.line(line.loop).label == "token"):
            if group == (str(int(end.number) - 1),):
                return end.loop, *group, end.number
        return group

    def _local(self, also: Also, event: Event) -> Any:
        return event.names[also.paper]

    def _add(self, line: Line, variable: str, shape: str, value: Any, event: Event, group: Group) -> None:
        algorithm, call = event.call.algorithm, event.call
        assert algorithm is not None
        key = (algorithm, line.number, variable)
        if callable(value):
            return  # a loss, whose own lines are seen where it is evaluated
        if line.kind == "end" and event.kind == "value" and group == (line.number,):
            self.visits[key].pop()  # what a model does behind a loop, in place of what the loop leaves
        array, (where, head) = _of_oracle(value), _where(call)
        if line.each:
            last = PSEUDOCODE[line.each].lines[-1]
            self._visit((line.each, last.number, last.variable), array, head, where)
        if algorithm in OF_COLUMNS:
            if head is not None:
                return  # a norm of queries and keys, which is seen in their products
            array, visits = array[..., None], self.visits[key]
            at = self._columns.setdefault((key, call.parent, call.parent.statement), len(visits)) if call.parent else -1
            if 0 <= at < len(visits):
                array = np.concatenate([visits[at].value, array], axis=-1)
                visits[at] = dataclasses.replace(visits[at], value=array)
                return
        self._visit(key, array, None if line.kind == "loop" else head, where)

    def _visit(self, key: Key, array: Any, head: int | None, where: str) -> None:
        self._order += 1
        self.visits[key].append(Visit(array, self.sequence, head, self._order, where))


def _of_oracle(value: Any) -> Any:
    """An array of the oracle's value: lists of columns stacked, the real part of complex steps."""
    if hasattr(value, "__dict__"):
        return oracle.flatten(value)
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        value = np.stack(value, axis=-1)
    return np.real(np.array(value))


def _where(call: Call) -> tuple[str, int | None]:
    """The loops around a call, named; and the head that it is for."""
    turns, head = [], None
    for ancestor in call.ancestors():
        for first, turn in reversed(ancestor.turns.items()):
            for tag in ancestor.function.statements[first].tags:
                label = PSEUDOCODE[tag.algorithm or ancestor.algorithm or 0].line(tag.first).label
                turns.append(f"{label} {turn}")
                if label == "head" and head is None:
                    head = turn - 1
    return ", ".join(reversed(turns)), head


class CodeRecord(_Record):
    """The places and values of the code's lines."""

    def __init__(self, batched: bool) -> None:
        self.batched = batched
        self.sites: dict[Key, dict[tuple[Statement | None, str], Site]] = defaultdict(dict)
        self._order = 0

    def _turns(self, line: Line, group: Group, event: Event) -> list[Any]:
        if line.label == "head":  # its body computes all heads in one turn
            assert event.call.algorithm is not None
            inside = PSEUDOCODE[event.call.algorithm].line(str(int(line.number) + 1))
            values = [] if event.kind == "turn" else self._split(event.value, inside.shape, event.call.algorithm)
            return list(range(1, len({head for _, head, _ in values}) + 1))
        return super()._turns(line, group, event)

    def _result(self, event: Event) -> None:
        """Also the value of an untagged `return`."""
        call = event.call
        if call.function.is_algorithm and call.algorithm is not None:
            line = PSEUDOCODE[call.algorithm].lines[-1]
            if line.number == "return":
                self._see(line, ("return",), dataclasses.replace(event, statement=call.function.result))
        super()._result(event)

    def _local(self, also: Also, event: Event) -> Any:
        value = event.names[also.code]
        return value if also.finish is None else also.finish(mapped(value)[0])

    def _add(self, line: Line, variable: str, shape: str, value: Any, event: Event, group: Group) -> None:
        algorithm = event.call.algorithm
        assert algorithm is not None
        sites = self.sites[algorithm, line.number, variable]
        site = sites.setdefault((event.statement, event.kind), Site(event.statement, group, []))
        if not seen_in(line, group):
            return
        with contextlib.suppress(AbstractValueError):
            if line.kind == "length":  # of the positions, or of the matrix of embeddings
                value = mapped(value)[0].shape[-1]
            elif line.code is not None and (line.number, line.variable) == (group[-1], variable):
                value = line.code(value, dict(event.names))
            for sequence, head, array in self._split(value, shape, algorithm):
                if algorithm not in OF_COLUMNS or head is None:  # as in the oracle's record
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
