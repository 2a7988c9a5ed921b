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
from .pseudocode import Line
from .tags import Statement, numbers
from .tracing import Call, Event
from .values import AbstractValueError, mapped, tree

__all__ = ["CodeRecord", "Key", "OracleRecord", "Site", "Visit", "seen_in"]

Key = tuple[int, str, str]  # an algorithm, its line, the variable
Group = tuple[str, ...]  # all lines of an algorithm that a statement does
OF_COLUMNS = {1, 2, 6, 7}
"""Algorithms of one token, which transformers run for every column of a matrix."""


@dataclasses.dataclass(frozen=True)
class Visit:
    """A value of a line."""

    value: Any  # the array, or the arrays of a tree by path
    # the number of the sequence in a batch; None where there is one only, or it is the same for all
    sequence: int | None
    head: int | None  # the number of the head; None outside attention
    order: int = 0  # of the code, the number of this value among those of its run
    where: str = ""  # of the oracle, the turns of the loops around it, such as "layer 2, head 1"


@dataclasses.dataclass(frozen=True)
class Site:
    """The place of a line: the statement, the lines that it does, and its visits."""

    statement: Statement | None  # None for a line that no statement does
    group: Group
    visits: list[Visit]


def seen_in(line: Line, group: Group) -> bool:
    """Whether a line is seen in a statement that does a group of lines: not what is only on the way to its value."""
    if line.kind in ("loop", "length") and line.number == group[0]:
        return True
    return line.kind != "loop" and (
        line.number == group[-1] or (line.product and str(int(line.number) + 1) == group[-1])
    )


class _Record:
    """Observes a run, if given to `traced`: passes the values of lines on to `_add`."""

    def __call__(self, event: Event) -> None:
        if event.call.algorithm is None:
            return
        algorithm = PSEUDOCODE[event.call.algorithm]
        group = numbers(event.statement.tags, algorithm.number, algorithm.order)
        for line in algorithm.lines:
            key = algorithm.number, line.number, line.variable
            if event.kind == "end":
                if line.loop in group:
                    self._add(key, line, event.value, event, (line.number,))
            elif line.number not in group:
                continue
            elif line.also is not None and event.statement.target in (line.also.variable, line.also.local):
                self._add((*key[:2], line.also.variable), line.also, event.value, event, group)
            elif line.kind == "loop" and seen_in(line, group):
                for turn in self._turns(line, group, event):
                    self._add(key, line, turn, event, group)
            elif event.kind == "value":
                self._add(key, line, event.value, event, group)

    def _turns(self, line: Line, group: Group, event: Event) -> list[Any]:
        """The turns of a loop: told one by one, or an axis of what it made."""
        if event.kind == "turn":
            return [event.value]
        return [np.arange(1, mapped(event.value)[0].shape[-1] + 1)] if line.label == "token" else []

    def _add(self, key: Key, line: Line, value: Any, event: Event, group: Group) -> None:
        raise NotImplementedError


class OracleRecord(_Record):
    """The visits of the oracle's lines."""

    def __init__(self) -> None:
        self.visits: dict[Key, list[Visit]] = defaultdict(list)
        self.sequence: int | None = None
        self._columns: dict[tuple[Key, Call, Statement | None], int] = {}

    def _add(self, key: Key, line: Line, value: Any, event: Event, group: Group) -> None:
        visits, caller = self.visits[key], event.call.parent
        if line.kind == "end" and event.kind == "value" and group == (line.number,):
            visits.pop()  # what a model does behind a loop, in place of what the loop leaves
        array, (where, head) = _of_oracle(value), _where(event.call)
        if line.each:
            last = PSEUDOCODE[line.each].lines[-1]
            self._visit((line.each, last.number, last.variable), array, head, where)
        if key[0] in OF_COLUMNS:
            if head is not None:
                return  # a norm of queries and keys, which is seen in their products
            array = array[..., None]
            at = self._columns.setdefault((key, caller, caller.statement), len(visits)) if caller else len(visits)
            if at < len(visits):
                array = np.concatenate([visits[at].value, array], axis=-1)
                visits[at] = dataclasses.replace(visits[at], value=array)
                return
        self._visit(key, array, None if line.kind == "loop" else head, where)

    def _visit(self, key: Key, array: Any, head: int | None, where: str) -> None:
        self.visits[key].append(Visit(array, self.sequence, head, where=where))


def _of_oracle(value: Any) -> Any:
    """An array of the oracle's value, with columns of a list stacked; or the arrays of its parameters by path."""
    if hasattr(value, "__dict__"):
        return oracle.flatten(value)
    is_columns = isinstance(value, list) and value and isinstance(value[0], np.ndarray)
    return np.stack(value, axis=-1) if is_columns else np.array(value)


def _where(call: Call) -> tuple[str, int | None]:
    """The loops around a call, named; and the head that it is for."""
    turns, head = [], None
    for ancestor in call.ancestors():
        for loop, turn in reversed(ancestor.turns.items()):
            for tag in loop.tags:
                label = PSEUDOCODE[tag.algorithm or ancestor.algorithm or 0].line(tag.first).label
                turns.append(f"{label} {turn}")
                if label == "head" and head is None:
                    head = turn - 1
    return ", ".join(reversed(turns)), head


class CodeRecord(_Record):
    """The places and values of the code's lines."""

    def __init__(self, batched: bool) -> None:
        self.batched, self._order = batched, 0
        self.sites: dict[Key, dict[Statement, Site]] = defaultdict(dict)

    def _turns(self, line: Line, group: Group, event: Event) -> list[Any]:
        if line.label == "head":  # its body computes all heads in one turn
            algorithm = PSEUDOCODE[event.call.algorithm or 0]
            inside = algorithm.line(str(int(line.number) + 1))
            heads = {head for _, head, _ in self._split(event.value, inside.shape, algorithm.number)}
            return list(range(1, len(heads) + 1))
        return super()._turns(line, group, event)

    def _add(self, key: Key, line: Line, value: Any, event: Event, group: Group) -> None:
        site = self.sites[key].setdefault(event.statement, Site(event.statement, group, []))
        if not seen_in(line, group):
            return
        with contextlib.suppress(AbstractValueError), np.errstate(invalid="ignore"):  # a wrong edit may give −∞ alone
            if line.kind == "length":  # of the positions, or of the matrix of embeddings
                value = mapped(value)[0].shape[-1]
            elif line.finish is not None and line.number == group[-1]:
                value = line.finish(value, event.names)
            for sequence, head, array in self._split(value, line.shape, key[0]):
                if key[0] not in OF_COLUMNS or head is None:  # as in the oracle's record
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
