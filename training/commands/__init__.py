"""Entry points of the command lines, for scripts/ and the installed commands.

A command takes arguments, prints, and returns an exit status. `command` handles signals and closed pipes, and prints an
error as one sentence, never as a traceback. Commands import their modules when called, so that Ctrl-C ends the import.
"""

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType

from training.disk import reason
from training.extras import install
from training.runs.interrupts import handling
from training.system import BROKEN_PIPE

__all__ = [
    "command", "compress_main", "convert_main", "cross_validate_main", "ensemble_main", "evaluate_main", "gato_main",
    "generate_main", "induction_main", "look_inside_main", "serve_main", "train_main",
]  # fmt: skip

Arguments = Sequence[str] | None
"""Command-line arguments; None for those of the process."""

EXTRAS = {"prometheus_client": "serve", "starlette": "serve", "uvicorn": "serve"}
"""Package that only some commands need → the extra of pyproject.toml that installs it."""


def command(main: Callable[[Arguments], int]) -> Callable[..., int]:
    """Return a function ``name_main`` as the command line ``name.py``: it prints errors and returns the exit status."""
    name = f"{main.__name__.removesuffix('_main')}.py"

    @functools.wraps(main)
    def run(argv: Arguments = None) -> int:
        with handling(_exit):
            return _run(main, name, argv)

    return run


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
        if error.name not in EXTRAS:
            raise
        return _failed(name, f"{error.name} is not installed: {install(EXTRAS[error.name])}", 2)
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


@command
def train_main(argv: Arguments) -> int:
    """Run scripts/train.py."""
    from training.commands.train import main

    return main(argv)


@command
def generate_main(argv: Arguments) -> int:
    """Run scripts/generate.py."""
    from training.commands.generate import main

    return main(argv)


@command
def ensemble_main(argv: Arguments) -> int:
    """Run scripts/ensemble.py."""
    from training.commands.ensemble import main

    return main(argv)


@command
def cross_validate_main(argv: Arguments) -> int:
    """Run scripts/cross_validate.py."""
    from training.commands.cross_validate import main

    return main(argv)


@command
def evaluate_main(argv: Arguments) -> int:
    """Run scripts/evaluate.py."""
    from training.commands.evaluate import main

    return main(argv)


@command
def compress_main(argv: Arguments) -> int:
    """Run scripts/compress.py."""
    from training.commands.compress import main

    return main(argv)


@command
def convert_main(argv: Arguments) -> int:
    """Run scripts/convert.py."""
    from training.commands.convert import main

    return main(argv)


@command
def induction_main(argv: Arguments) -> int:
    """Run scripts/induction.py."""
    from training.commands.induction import main

    return main(argv)


@command
def look_inside_main(argv: Arguments) -> int:
    """Run scripts/look_inside.py."""
    from training.commands.look_inside import main

    return main(argv)


@command
def gato_main(argv: Arguments) -> int:
    """Run scripts/gato.py."""
    from training.commands.gato import main

    return main(argv)


@command
def serve_main(argv: Arguments) -> int:
    """Run scripts/serve.py."""
    from training.commands.serve import main

    return main(argv)
