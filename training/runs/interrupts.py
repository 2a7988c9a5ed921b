"""Ctrl-C and SIGTERM: recorded when they arrive, acted on when it is safe, even while XLA compiles.

Python runs signal handlers in the main thread, between two bytecode instructions, which a long compilation would delay;
`Interrupts.run` compiles in another thread, while the main one waits for it or for a signal.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

POLL = 0.05  # seconds


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM arrived: the exit `status` is 130 or 143."""

    def __init__(self, status: int, *, working: bool = False) -> None:
        super().__init__(status)
        self.status = status
        self.working = working  # whether a thread of `Interrupts.run` still runs, which only `os._exit` ends at once


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM by a function, and restore the handlers at the end."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Interrupts:
    """A context in which the first Ctrl-C or SIGTERM is recorded; the second ends the process at once."""

    def __init__(self) -> None:
        self.status = 0  # or the exit status of the signal that arrived
        self._handling = handling(self._handle)

    def __enter__(self) -> "Interrupts":
        self._handling.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handling.__exit__(*error)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.status:
            os._exit(128 + number)
        self.status = 128 + number

    def check(self) -> None:
        """Raise Interrupted if a signal arrived."""
        if self.status:
            raise Interrupted(self.status)

    def run(self, function: Callable[[], T]) -> T:
        """Call a function in another thread and return its result; it keeps running if a signal raises Interrupted."""
        self.check()
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        while not future.done():
            wait([future], POLL)
            if self.status and not future.done():
                raise Interrupted(self.status, working=True)
        self.check()
        return future.result()
