"""Entry points of the command lines, for scripts/ and the installed commands.

A command takes arguments, prints, and returns an exit status. `command` handles signals and closed pipes, and prints an
error as one sentence, never as a traceback. Commands import their modules when called, so that Ctrl-C ends the import.
"""

import contextlib
import functools
import gc
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType, TracebackType

from training.benchmarks.accelerators import ENVIRONMENT
from training.disk import reason
from training.extras import install
from training.runs.interrupts import handling
from training.system import BROKEN_PIPE

Arguments = Sequence[str] | None
"""Command-line arguments; None for those of the process."""

EXTRAS = {
    **dict.fromkeys(("h11", "prometheus_client", "psutil", "pydantic", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(("jinja2", "latex2mathml", "markupsafe", "pygments", "rich"), "book"),
    **dict.fromkeys(("filelock", "grain", "matplotlib", "orbax", "safetensors", "tokenizers", "tqdm"), "train"),
}
"""Package that only some commands need → the extra of pyproject.toml that installs it."""
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
    """Return what a command is called in messages: ``formal-train`` if it is installed and called so, or ``train.py``.

    Example:
        >>> called("train")
        'train.py'
    """
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
        extra = EXTRAS.get(error.name, "")
        if error.name in ALL_NEED:
            extra = "book" if name == "crosscheck.py" else "train"
        if not extra:
            raise
        return _failed(name, f"{error.name} is not installed: {install(extra)}", 2)
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


def _entry(name: str, environment: Mapping[str, str] | None = None) -> Callable[..., int]:
    """Return the command of ``training/commands/NAME.py``, whose JAX is imported in this `environment`."""

    def main(argv: Arguments) -> int:
        if "jax" not in sys.modules:
            os.environ.update(environment or {})
        return _imported(f"{__name__}.{name}").main(argv)

    main.__name__, main.__doc__ = f"{name}_main", f"Run scripts/{name}.py."
    return command(main)


def _imported(name: str) -> ModuleType:
    """Import a module without collecting garbage: what is imported stays, and walking it takes 0.2 s a command."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


benchmark_main = _entry("benchmark")
compress_main = _entry("compress")
convert_main = _entry("convert")
cross_validate_main = _entry("cross_validate")
crosscheck_main = _entry("crosscheck")
ensemble_main = _entry("ensemble")
evaluate_main = _entry("evaluate")
gato_main = _entry("gato")
generate_main = _entry("generate")
induction_main = _entry("induction")
look_inside_main = _entry("look_inside")
scaling_main = _entry("scaling", ENVIRONMENT)
serve_main = _entry("serve")
train_main = _entry("train")
