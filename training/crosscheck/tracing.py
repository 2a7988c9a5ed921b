"""Observing the tagged statements of a run: what each of them computed, whenever it was executed.

`sys.settrace` reports every line of the traced files. A tagged statement is done when its frame goes on to a line
outside it or returns; then its locals are read. Nothing is added to the code that runs.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from .tags import Function, Statement, read

__all__ = ["Call", "Event", "traced"]


@dataclasses.dataclass(eq=False)
class Call:
    """A running call of a traced function."""

    function: Function  # what was called
    parent: "Call | None"  # the traced call that it was made from; None for the first
    algorithm: int | None  # the algorithm that it belongs to
    statement: Statement | None = None  # its tagged statement that is being executed, if any
    # how often each of its loops has been entered, by the first line of the loop
    turns: dict[int, int] = dataclasses.field(default_factory=dict)
    raising: bool = False  # whether an exception is passing through it

    def ancestors(self) -> Iterator["Call"]:
        """The call itself, its caller, and so on."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent

    @property
    def cause(self) -> "Call | None":
        """The nearest caller that is executing a tagged statement, through functions that have none."""
        return next((call for call in self.ancestors() if call is not self and call.statement is not None), None)


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that a run did."""

    # "value": a tagged statement assigned or returned `value`; "turn": a tagged loop began its `value`-th turn; "end":
    # a tagged loop left `value`; "result": a function returned `value`; "call": a function was called
    kind: str
    call: Call  # the call that did it, or was made
    statement: Statement | None  # the tagged statement, if it was one
    value: Any  # see kind
    names: Mapping[str, Any]  # the locals at that time


Observe = Callable[[Event], bool | None]


class _Tracer:
    def __init__(self, folder: pathlib.Path, root: pathlib.Path, observe: Observe, hidden: Set[CodeType]):
        self.root, self.observe, self.hidden = root, observe, hidden
        self.prefix = f"{folder}/"
        self.call: Call | None = None
        self.functions: dict[CodeType, Function | None] = {}
        self.muted = False

    def __call__(self, frame: FrameType, event: str, arg: Any):
        if self.muted:
            return None
        code = frame.f_code
        if code in self.hidden:
            return self._hide(frame)
        if code not in self.functions:
            self.functions[code] = self._function(code)
        function = self.functions[code]
        return None if function is None else self._enter(function, frame)

    def _hide(self, frame: FrameType):
        """Observe nothing until a frame ends."""
        self.muted, frame.f_trace_lines = True, False

        def within(frame: FrameType, event: str, arg: Any):
            self.muted = event != "return"
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
        cause = call.cause
        head = cause and cause.statement
        is_body = head is not None and (head.target == function.name or _is_in_another_order(function))
        if cause is not None and head is not None and head.end is not None and is_body:
            self._turn(cause, head)
        self.muted = bool(self.observe(Event("call", call, None, None, {})))
        frame.f_trace_lines = not self.muted

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
        previous, line = call.statement, frame.f_lineno
        if not call.function.first <= line <= call.function.last:
            return  # a decorator that the tests' import hook adds has no line of its own
        here = call.function.statements.get(line)
        if previous is not None and (here is not previous or previous.body):
            call.statement = None
            if previous.body is not None and previous.body[0] <= line <= previous.body[1]:
                self._turn(call, previous)
            elif here is not previous:
                self._done(call, previous, frame.f_locals.get(previous.target or ""), frame)
        call.statement = here

    def _leave(self, call: Call, frame: FrameType, result: Any) -> None:
        statement, call.statement = call.statement, None
        if not call.raising and not self.muted:
            if statement is not None:
                value = result if statement.returns else frame.f_locals.get(statement.target or "")
                self._done(call, statement, value, frame)
            self.observe(Event("result", call, None, result, dict(frame.f_locals)))
        self.call, self.muted = call.parent, False

    def _done(self, call: Call, statement: Statement, value: Any, frame: FrameType) -> None:
        names = dict(frame.f_locals)
        if statement.body is None:
            self.observe(Event("value", call, statement, value, names))
        if statement.end is not None:
            call.turns.pop(statement.first, None)
            self.observe(
                Event("end", call, statement, names.get(statement.end.target or statement.target or ""), names)
            )

    def _turn(self, call: Call, statement: Statement) -> None:
        call.turns[statement.first] = turn = call.turns.get(statement.first, 0) + 1
        self.observe(Event("turn", call, statement, turn, {}))


def _is_in_another_order(function: Function) -> bool:
    """Whether a function is the body of the loop over the layers for a variant with its lines in another order."""
    return function.file.endswith("/orders.py") and bool(function.statements)


@contextmanager
def traced(
    folder: pathlib.Path, root: pathlib.Path, observe: Observe, hidden: Set[CodeType] = frozenset()
) -> Iterator[None]:
    """Observe the functions of a folder's files as long as the context lasts.

    `folder`: whose files are traced; `root`: the root of the repository, which the events' paths start from;
    `observe` receives every event; it returns True for a "call" that is not to be observed; `hidden`:
    the code of functions of any file that are not, with all that they call.
    """
    previous = sys.gettrace()
    sys.settrace(_Tracer(folder, root, observe, hidden))
    try:
        yield
    finally:
        sys.settrace(previous)
