"""Files: reading only regular files of this machine, writing atomically, and the reasons for failures."""

import contextlib
import errno
import json
import math
import os
import re
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
"""Kinds of paths that are not regular files."""


def reason(error: OSError) -> str:
    """Return the operating system's message, or the library's if the error comes from NumPy or a decompressor."""
    if re.fullmatch(r"\d+ requested and \d+ written", str(error)):  # NumPy's, which drops the number of the error
        return f"{os.strerror(errno.ENOSPC)} ({error})"
    return error.strerror or (str(error).splitlines() or [type(error).__name__])[0]


def local_path(path: str | Path) -> Path:
    """Return a path, or raise ValueError if it is a URL: gs://bucket/run would be a directory named gs: here."""
    if "://" in str(path):
        raise ValueError(
            f"expected a path on this machine, got {path}; mount its bucket (with gcsfuse, s3fs or rclone) or copy the "
            "files here, and give their path"
        )
    return Path(path)


def require_file(path: Path) -> Path:
    """Return the path, or raise OSError if it is not a regular file: reading a pipe would wait, and work only once."""
    mode = path.stat().st_mode
    for kind, is_one in KINDS.items():
        if is_one(mode):
            raise OSError(errno.EINVAL, f"expected a file, got {kind}", str(path))
    return path


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8. Raises OSError if it cannot be read, and ValueError if it is not UTF-8."""
    try:
        return require_file(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, got the byte 0x{error.object[error.start]:02x} at {error.start}") from None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, or raise ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def as_json(values: dict[str, Any], *, indent: int | None = None) -> str:
    """Return numbers by name as JSON, which lacks NaN and infinities: these become strings that `float` reads."""
    finite = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(finite, indent=indent)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Call `write` with a path beside `path`, flush and rename it; if that raises OSError, `path` is unchanged."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)  # writing through a link would change its target
    try:
        write(unfinished)
        with unfinished.open("r+b") as file:  # Windows flushes only what may be written
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
