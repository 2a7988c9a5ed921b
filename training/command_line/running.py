"""Running a command: it handles signals and closed pipes, and prints an error as one sentence, never as a traceback."""

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from training.disk import reason
from training.extras import EXTRAS, install
from training.runs.interrupts import handling
from training.system import BROKEN_PIPE

Arguments = Sequence[str] | None
"""Command-line arguments; None for those of the process."""

ALL_NEED = ("jax", "jaxlib", "jaxtyping", "numpy", "optax")
"""Packages that all commands need, and every extra installs."""


def command(main: Callable[[Arguments], int]) -> Callable[..., int]:
    """Return a function ``name_main`` as the command line ``name.py``: it prints errors and returns the exit status."""

    @functools.wraps(main)
    def run(argv: Arguments = None) -> int:
        with handling(_exit):
            return _run(main, called(main.__name__.removesuffix("_main")), argv)

    return run


def called(name: str) -> str:
    """Return a command's name in messages: ``formal-train`` if it is installed and called so, or ``train.py``."""
    program = Path(sys.argv[0]).stem
    return program if program == f"formal-{name.replace('_', '-')}" else f"{name}.py"


def _run(main: Callable[[Arguments], int], name: str, argv: Arguments) -> int:
    sys.excepthook = _main_thread_only
    try:
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs pages about an error that we print
        status = main(argv)
        sys.stdout.flush()
        return status
    except ModuleNotFoundError as error:
        if error.name is None:  # our own sentence
            return _failed(name, str(error), 2)
        package = error.name.partition(".")[0]
        extra = EXTRAS.get(package, "")
        if error.name in ALL_NEED:
            extra = "book" if name == "crosscheck.py" else "train"
        if not extra:
            raise
        return _failed(name, f"{package} is not installed: {install(extra)}", 2)
    except BrokenPipeError:  # `| head -1`: the reader closed the pipe
        _discard_output()
        return BROKEN_PIPE
    except (ValueError, OverflowError, RecursionError) as error:
        return _failed(name, str(error), 2)
    except OSError as error:
        return _failed(name, f"{error.filename or 'output'}: {reason(error)}", 2)
    except RuntimeError as error:
        return _failed(name, str(error), 1)
    except MemoryError:
        return _failed(name, "out of memory", 1)


def _main_thread_only(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print uncaught errors of the main thread, but not those that libraries' threads raise after it has ended."""
    if threading.current_thread() is threading.main_thread():
        sys.__excepthook__(kind, error, trace)


def _failed(name: str, sentence: str, status: int) -> int:
    try:
        sys.stdout.flush()
        print(f"{name}: {sentence}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _discard_output()
    return status


def _discard_output() -> None:
    """Redirect both streams to /dev/null, so that Python's flush at exit finds no broken pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)


def _exit(number: int, frame: FrameType | None) -> None:
    """Exit at once; a process that computes or compiles would otherwise print a traceback."""
    with contextlib.suppress(OSError, RuntimeError):
        sys.stdout.flush()
    os._exit(128 + number)
