"""The command lines, as scripts/ and the installed commands run them: an error is one sentence, never a traceback.

A command is a function from arguments to an exit status, which prints and raises errors; `command` answers for signals,
pipes and errors. Commands import what they need when they are called, so that Ctrl-C ends the import, too.
"""

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType

from training.disk import reason

__all__ = [
    "command", "compress_main", "convert_main", "cross_validate_main", "ensemble_main", "evaluate_main", "gato_main",
    "generate_main", "induction_main", "look_inside_main", "serve_main", "train_main",
]  # fmt: skip

Arguments = Sequence[str] | None
"""Those of a command line; None for those of the process."""

EXTRAS = {"prometheus_client": "serve", "starlette": "serve", "uvicorn": "serve"}
"""Packages that only some commands need, and the extra of pyproject.toml that has them."""
PIPE = 128 + signal.SIGPIPE


def command(main: Callable[[Arguments], int]) -> Callable[..., int]:
    """Let a function ``name_main`` answer as the command line ``name.py``, with its exit status."""
    name = f"{main.__name__.removesuffix('_main')}.py"

    @functools.wraps(main)
    def answer(argv: Arguments = None) -> int:
        return _run(main, name, argv)

    return answer


def _run(main: Callable[[Arguments], int], name: str, argv: Arguments) -> int:
    sys.excepthook = _of_main_thread
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax would log for pages what our sentence says
        status = main(argv)
        sys.stdout.flush()
        return status
    except ModuleNotFoundError as error:
        if error.name is None:  # our own sentence
            return _said(name, str(error), 2)
        if error.name not in EXTRAS:
            raise
        extra = EXTRAS[error.name]
        return _said(name, f"{error.name} is not installed: pip install 'formal-algorithms[{extra}]'", 2)
    except BrokenPipeError:  # `| head -1`: the reader closed the pipe
        _abandon_output()
        return PIPE
    except (ValueError, OverflowError, RecursionError) as error:
        return _said(name, str(error), 2)
    except OSError as error:
        return _said(name, f"{error.filename or 'output'}: {reason(error)}", 2)
    except RuntimeError as error:
        return _said(name, str(error), 1)
    except MemoryError:
        return _said(name, "there is not enough memory for what was asked", 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _of_main_thread(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print uncaught errors of the main thread, but not those of libraries' threads after it has given up."""
    if threading.current_thread() is threading.main_thread():
        sys.__excepthook__(kind, error, trace)


def _said(name: str, sentence: str, status: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        print(f"{name}: {sentence}", file=sys.stderr, flush=True)
        return status
    _abandon_output()
    return status


def _abandon_output() -> None:
    """Let Python's own flush at the end find no broken pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once; a process that computes or compiles would otherwise print where it was."""
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
