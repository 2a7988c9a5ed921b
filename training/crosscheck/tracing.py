"""Observing the tagged statements of a run: what each of them computed, whenever it was executed.

`sys.settrace` reports every line of the traced files. A tagged statement is done when its frame goes on to a line
outside it or returns; then its locals are read. Nothing is added to the code that runs: `algorithms.inside` runs a second
form of it, which names no turns of loops, integers or trees (64 of the 105 lines), and has none of the oracle.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .tags import Function, Statement, read

__all__ = ["Call", "Event", "traced"]


@dataclasses.dataclass(eq=False)
class Call:
    """A running call of a traced function."""

    function: Function  # what was called
    parent: "Call | None"  # the traced call that it was made from; None for the first
    algorithm: int | None  # the algorithm that it belongs to
    statement: Statement | None = None  # its tagged statement that is being executed, if any
    turns: dict[Statement, int] = dataclasses.field(
        default_factory=dict
    )  # how often each of its loops has been entered
    raising: bool = False  # whether an exception is passing through it

    def ancestors(self) -> Iterator["Call"]:
        """The call itself, its caller, and so on."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent


class Event(NamedTuple):
    """Something that a run did."""

    # "value": a tagged statement assigned or returned `value`; "turn": a tagged loop began its `value`-th turn; "end": a
    # tagged loop, whose last statement is `statement`, left `value`
    kind: str
    call: Call  # the call that did it
    statement: Statement
    value: Any
    names: Mapping[str, Any]  # the locals at that time


class _Tracer:
    def __init__(
        self, folder: pathlib.Path, root: pathlib.Path, observe: Callable[[Event], None], hidden: Set[CodeType]
    ):
        self.root, self.observe, self.hidden = root, observe, hidden
        self.prefix = f"{folder}/"
        self.call: Call | None = None
        self.is_hidden = False
        self.function = functools.cache(self._function)

    def __call__(self, frame: FrameType, event: str, arg: Any):
        if self.is_hidden:
            return None
        if frame.f_code in self.hidden:
            return self._hide(frame)
        function = self.function(frame.f_code)
        return None if function is None else self._enter(function, frame)

    def _hide(self, frame: FrameType):
        """Observe nothing until a frame ends."""
        self.is_hidden, frame.f_trace_lines = True, False

        def within(frame: FrameType, event: str, arg: Any):
            self.is_hidden = event != "return"
            return within

        return within

    def _function(self, code: CodeType) -> Function | None:
        if not code.co_filename.startswith(self.prefix) or code.co_name.startswith("<"):
            return None
        return read(pathlib.Path(code.co_filename), self.root).get(code.co_firstlineno)

    def _enter(self, function: Function, frame: FrameType):
        parent = self.call
        algorithm = function.algorithm or (parent.algorithm if parent else None)
        call = self.call = Call(function, parent, algorithm)
        cause = next((caller for caller in call.ancestors() if caller.statement), None)
        loop = cause and cause.statement
        if cause and loop and loop.end and function.statements and cause.algorithm == algorithm:
            self._turn(cause, loop)  # of a decorated function, whose body is called

        def within(frame: FrameType, event: str, arg: Any):
            if event == "line":
                call.raising = False
                self._at(call, frame)
            elif event == "exception":
                call.raising = True
            elif event == "return":
                self._leave(call, frame, arg)
            return within

        return within

    def _at(self, call: Call, frame: FrameType) -> None:
        line = frame.f_lineno
        if line not in call.function.lines:
            return  # a decorator that the tests' import hook adds has no line of its own
        here = call.function.statements.get(line)
        previous, call.statement = call.statement, None
        if previous is not None and line in previous.body:
            self._turn(call, previous)
        elif previous is not None and here is not previous:
            self._done(call, previous, frame.f_locals.get(previous.target or ""), frame)
        call.statement = here

    def _leave(self, call: Call, frame: FrameType, result: Any) -> None:
        statement, call.statement = call.statement, None
        if statement is not None and not call.raising:
            value = result if statement.returns else frame.f_locals.get(statement.target or "")
            self._done(call, statement, value, frame)
        self.call = call.parent

    def _done(self, call: Call, statement: Statement, value: Any, frame: FrameType) -> None:
        names, end = frame.f_locals, statement.end
        if not statement.body:
            self.observe(Event("value", call, statement, value, names))
        if end is not None:
            call.turns.pop(statement, None)
            self.observe(Event("end", call, end, names.get(end.target or statement.target or ""), names))

    def _turn(self, call: Call, statement: Statement) -> None:
        call.turns[statement] = turn = call.turns.get(statement, 0) + 1
        self.observe(Event("turn", call, statement, turn, {}))


@contextmanager
def traced(
    folder: pathlib.Path, root: pathlib.Path, observe: Callable[[Event], None], hidden: Set[CodeType] = frozenset()
) -> Iterator[None]:
    """Observe the functions of a folder's files as long as the context lasts.

    `folder`: whose files are traced; `root`: the root of the repository, which the events' paths start from; `observe`
    receives every event; `hidden`: the code of functions of any file that are not observed, with all that they call.
    """
    previous = sys.gettrace()
    sys.settrace(_Tracer(folder, root, observe, hidden))
    try:
        yield
    finally:
        sys.settrace(previous)
