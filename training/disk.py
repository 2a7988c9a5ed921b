"""Files: reading only regular files of this machine, writing atomically, and the reasons for failures."""

import contextlib
import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KINDS: dict[str, Callable[[int], bool]] = {
    "a pipe": stat.S_ISFIFO,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
    "a socket": stat.S_ISSOCK,
    "a directory": stat.S_ISDIR,
}
"""Kinds of paths that are not regular files."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without locks, such as Lustre without flock."""
UNFINISHED = re.compile(r"\.unfinished-(?:(?P<name>.+)-[0-9a-f]{8}|(?P<locked>.+)\.lock)")
"""Names of what writers write beside NAME, and of their locks."""


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


def write_atomically(path: Path, write: Callable[[Path], Any], *, again: bool = True) -> None:
    """Call `write` with a name beside `path` for a file or a directory, flush a file, and rename it to `path`; if that
    raises an error, `path` is unchanged. Writers of the same path wait for each other; without `again`, nothing is
    written if it exists by then. What killed writers left in the directory is removed.
    """
    with _locked(path) as is_alone:
        remove_unfinished(path.parent, but=path.name if is_alone else None)
        if path.exists() and not again:
            return
        unfinished = path.with_name(f".unfinished-{path.name}-{secrets.token_hex(4)}")
        try:
            write(unfinished)
            if unfinished.is_file():
                with unfinished.open("r+b") as file:  # Windows flushes only what may be written
                    os.fsync(file.fileno())
            if again or not path.exists():  # where there are no locks, another may have been faster
                unfinished.replace(path)
        finally:
            _remove(unfinished)  # unless it is renamed


def give_usual_mode(path: Path) -> None:
    """Give a file the usual permissions of its directory: safetensors lets only the owner read what it writes."""
    usual = path.with_name(f".unfinished-{path.name}-{secrets.token_hex(4)}")
    try:
        usual.touch()
        shutil.copymode(usual, path)
    finally:
        _remove(usual)


def remove_unfinished(directory: Path, *, but: str | None = None) -> None:
    """Remove what killed writers left in a directory; `but` is the name of a path that this thread has locked."""
    for left in list(directory.glob(".unfinished-*")):
        match = UNFINISHED.fullmatch(left.name)
        name = match and match[match.lastgroup or 0]
        if match is None or name is None or (match.lastgroup == "locked" and name == but):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if name == but or stack.enter_context(_locked(directory / name, wait=False)):  # its writer is gone
                _remove(left)


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock the writers of `path`; yields False if another has the lock and not `wait`, or if there are no locks."""
    import filelock

    if not path.parent.is_dir():  # which the lock would make
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    file = path.with_name(f".unfinished-{path.name}.lock")
    lock = filelock.FileLock(file, blocking=wait, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        yield False
        return
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        with contextlib.suppress(OSError):
            file.unlink()
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):  # before its release: who has opened it sees that it is gone
            file.unlink()
        lock.release()


def _remove(path: Path) -> None:
    """Remove a file, a link, or a directory with what is in it, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
