"""The command lines, as scripts/ and the installed commands run them: an error is one sentence, never a traceback.

A command is a module with `main(argv) → exit status`, which prints and raises errors; `run` imports it and answers for
signals, pipes and errors.
"""

import contextlib
import functools
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType

from training.disk import reason

__all__ = ["compress_main", "convert_main", "evaluate_main", "generate_main", "run", "serve_main", "train_main"]

EXTRAS = {"prometheus_client": "serve", "starlette": "serve", "uvicorn": "serve"}
"""Packages that only some commands need, and the extra of pyproject.toml that has them."""
PIPE = 128 + signal.SIGPIPE


def run(module: str, argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit status.

    Args:
        module: the dotted name of the command's module; it is imported here, so that Ctrl-C ends the import, too.
        argv: the arguments; those of the process if None.
    """
    name = f"{module.removesuffix('.command').rpartition('.')[2]}.py"
    sys.excepthook = _of_main_thread
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        command = importlib.import_module(module)
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax would log for pages what our sentence says
        status = command.main(argv)
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
    """Print what nobody caught, but not what threads of libraries complain of after the main one has given up."""
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


train_main = functools.partial(run, "training.commands.train")
generate_main = functools.partial(run, "training.commands.generate")
evaluate_main = functools.partial(run, "training.commands.evaluate")
compress_main = functools.partial(run, "training.commands.compress")
convert_main = functools.partial(run, "training.commands.convert")
serve_main = functools.partial(run, "training.commands.serve")
"""What the installed commands call."""
