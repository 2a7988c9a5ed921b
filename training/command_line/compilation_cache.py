"""JAX's compilation cache, on for every command: later commands load what an earlier one compiled."""

import argparse
import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from training.command_line.compiled_programs import Programs, keep_programs_in
from training.command_line.terminal import say
from training.data.token_store import default_cache_dir
from training.interchange.names import clear

OFF = "off"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the cache's flags, which all commands have."""
    group = parser.add_argument_group("compilation cache", "compiled programs are kept and loaded again")
    group.add_argument(
        "--compilation-cache",
        metavar=f"DIR|{OFF}",
        help="where to keep compiled programs (default: JAX_COMPILATION_CACHE_DIR, or "
        "~/.cache/formal-algorithms/programs)",
    )
    group.add_argument("--clear-compilation-cache", action="store_true", help="delete them first")


def begin(arguments: argparse.Namespace, *, alone: bool = True) -> None:
    """Switch the cache on or off, by the flags and the environment. Several processes (not `alone`), for which XLA
    tunes GPU kernels jointly, waiting for each, use a cache only in a named directory, which they must share. With
    --clear-models, the cache of models is cleared.
    """
    if getattr(arguments, "clear_models", False):
        clear(getattr(arguments, "cache", None) or default_cache_dir())
    directory = arguments.compilation_cache
    if directory is None:
        directory = getattr(jax.config, "jax_compilation_cache_dir", None)
    if directory is None:
        directory = OFF
        if alone:
            with contextlib.suppress(RuntimeError):  # no home directory
                directory = str(default_cache_dir() / "programs")
    if directory in (OFF, ""):
        jax.config.update("jax_compilation_cache_dir", None)
        reset_cache()
        return
    if arguments.clear_compilation_cache and "://" not in directory:
        Programs(Path(directory), warn=say).clear()
    keep_programs_in(directory, warn=say)


def command(parser: Callable[[], argparse.ArgumentParser]) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """Make a function of a parser's arguments a command line with the cache and its flags; its status is 0 unless it
    returns one.
    """

    def of(main: Callable[..., int | None]) -> Callable[..., int]:
        @functools.wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            with_flags = parser()
            add_flags(with_flags)
            arguments = with_flags.parse_args(argv)
            begin(arguments)
            return main(arguments) or 0

        return run

    return of
