"""Files: read only if they are files, written whole or not at all, and what kept either from happening."""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS: dict[str, Callable[[int], bool]] = {
    "a pipe": stat.S_ISFIFO,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
    "a socket": stat.S_ISSOCK,
    "a directory": stat.S_ISDIR,
}
"""Kinds of paths that are not files."""


def reason(error: OSError) -> str:
    """Return the operating system's message, or that of NumPy or a decompressor."""
    return error.strerror or (str(error).splitlines() or [type(error).__name__])[0]


def require_file(path: Path) -> Path:
    """Return the path, if it is a file: a pipe would be waited for, and could not be read twice. Raises OSError if it
    is something else, or there is nothing.
    """
    mode = path.stat().st_mode
    for kind, is_one in KINDS.items():
        if is_one(mode):
            raise OSError(errno.EINVAL, f"expected a file, got {kind}", str(path))
    return path


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8. Raises OSError if it cannot be read, or is not a file, and ValueError if it
    is not UTF-8.
    """
    try:
        return require_file(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, got the byte 0x{error.object[error.start]:02x} at {error.start}") from None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a text in JSON, or raise ValueError if it is not JSON, or is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` make a file beside `path`, and rename it when it is on the disk. Raises OSError if it cannot be
    written; nothing is left of it then, and `path` is as it was.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)  # a link would be written through
    try:
        write(unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
