"""JAX's compilation cache, on for every command: later commands load what an earlier one compiled.

JAX can bound its cache, too, but then reads a file for each program whenever it keeps another: 0.1 s for a thousand of
them, more than many take to compile. Here, the oldest are removed when a command begins.
"""

import argparse
import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from training.command_line.terminal import say
from training.data.token_store import default_cache_dir
from training.disk import reason
from training.interchange.names import clear
from training.mesh.cpu import cores
from training.system import is_private

LIMIT = 1 << 30  # most bytes of all programs when a command begins
SUFFIX = "-cache"  # of JAX's files

OFF = "off"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the cache's flags, which all commands have."""
    group = parser.add_argument_group("compilation cache", "compiled programs are stored, and loaded by later runs")
    group.add_argument(
        "--compilation-cache",
        metavar=f"DIR|{OFF}",
        help="directory of the compiled programs (default: JAX_COMPILATION_CACHE_DIR, or "
        "~/.cache/formal-algorithms/programs)",
    )
    group.add_argument("--clear-compilation-cache", action="store_true", help="delete the stored programs first")


def begin(arguments: argparse.Namespace, *, alone: bool = True) -> None:
    """Switch the cache on or off; several processes use one only in a named directory, which they must share."""
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
    if "://" not in directory:
        directory = _prepared(Path(directory), 0 if arguments.clear_compilation_cache else LIMIT, alone=alone)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # XLA's own are unbounded
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_compilation_cache_dir", directory)
    reset_cache()


def _prepared(directory: Path, limit: int, *, alone: bool) -> str | None:
    """Remove the oldest programs beyond `limit` bytes; return the folder, or None, with a note, if it is unsafe."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(directory.stat()):
            say(f"note: {directory} cannot keep compiled programs: others may write there; name another directory")
            return None
        found = [(max(of.st_atime, of.st_mtime), of.st_size, path) for path, of in _programs(directory)]
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total > limit:
                path.unlink(missing_ok=True)
                total -= size
    except OSError as error:
        say(
            f"note: {directory} cannot keep compiled programs ({reason(error)}), so they are compiled again next time; "
            "name another directory with --compilation-cache, or off"
        )
        return None
    return str(directory / f"{cores()}-{os.environ.get('NPROC', '')}" if alone else directory)


def _programs(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in directory.rglob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            yield path, path.stat()


def command(parser: Callable[[], argparse.ArgumentParser]) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """Make a function of parsed arguments a command line with the cache and its flags; its default status is 0."""

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
