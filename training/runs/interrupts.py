"""Ctrl-C and SIGTERM: remembered when they come, acted on where it is safe, also while XLA compiles.

Python runs a signal's handler between two instructions of the main thread, so a compilation of minutes in that thread
would hold it up. `Interrupts.run` does such work in another thread, while the main one waits for it or for a signal.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

POLL = 0.05  # seconds


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM came.

    Attributes:
        status: the exit status that says so: 130 or 143.
        working: whether a thread of `Interrupts.run` still works; only `os._exit` ends such a process at once.
    """

    def __init__(self, status: int, *, working: bool = False) -> None:
        super().__init__(status)
        self.status = status
        self.working = working


class Interrupts:
    """A context in which Ctrl-C and SIGTERM are remembered; the second one ends the process on the spot.

    Attributes:
        status: 0, or the exit status of the signal that came.
    """

    def __init__(self) -> None:
        self.status = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.status:
            os._exit(128 + number)
        self.status = 128 + number

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.status:
            raise Interrupted(self.status)

    def run(self, function: Callable[[], T]) -> T:
        """Call a function in another thread and return its result, or raise its error. Raises Interrupted if a signal
        came; the function continues, and its result is lost.
        """
        self.check()
        outcome: list[Any] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                outcome.append(function())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL)
            if self.status and thread.is_alive():
                raise Interrupted(self.status, working=True)
        self.check()
        if errors:
            raise errors[0]
        return outcome[0]
