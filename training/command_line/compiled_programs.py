"""The store of JAX's compilation cache: compiled programs on disk, by key.

JAX computes the key from the program, its shapes, the versions of JAX and XLA, the options, the devices and the
processor's features. JAX's own bounded store is not used: it writes files in place, so a process that is killed leaves
a broken one for good, and it takes a lock for every read.
"""

import contextlib
import hashlib
import importlib
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from training.mesh.cpu import cores
from training.system import OPEN_ONLY_FILES, is_private

HOME = "jax._src.compilation_cache"  # makes the cache's store, for which no API is public; tried with 0.10.2 and 0.12.0
LIMIT = 1 << 30  # most bytes of all programs, unless JAX_COMPILATION_CACHE_MAX_SIZE says otherwise
KEPT = 0.9  # of the limit, after programs were removed
SUFFIX, UNFINISHED = ".program", ".unfinished"
ABANDONED = 3600.0  # seconds after which an unfinished file is abandoned
DIGEST = hashlib.sha256().digest_size


def keep_programs_in(directory: str, *, warn: Callable[[str], None], seconds: float = 0.0) -> None:
    """Make JAX keep every program that takes at least `seconds` to compile in a directory, which need not exist. A
    cloud directory, with ``://``, is left to JAX's own store. `warn` is called once if the directory is not writable.
    """
    limit = getattr(jax.config, "jax_compilation_cache_max_size", -1)

    def store(path: str) -> tuple[Programs, str]:
        return Programs(Path(path), limit=LIMIT if limit < 0 else limit, warn=warn), path

    if "://" not in directory:
        try:
            private: Any = importlib.import_module(HOME)
            private.get_file_cache  # noqa: B018 (must exist to be replaced)
            private.get_file_cache = store
        except (ImportError, AttributeError):
            warn(f"note: jax {jax.__version__} keeps compiled programs in a store of its own, which is not bounded")
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # XLA's own are unbounded
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
    reset_cache()


class Programs:
    """Compiled programs in a directory, at most `limit` bytes; the least recently used are removed first. A file begins
    with a hash of its key and content, and is renamed into place when complete. Since programs are executable code,
    only files are read that belong to this user and that nobody else may write. `warn` is called once if that fails.
    """

    def __init__(self, directory: Path, *, limit: int = LIMIT, warn: Callable[[str], None]) -> None:
        self._directory, self._limit, self._warn = directory, limit, warn
        self._bytes: int | None = None  # of all programs; unknown before the first write
        self._writes = True

    def get(self, key: str) -> bytes | None:
        """Return a program, or None."""
        path = self._path(key)
        try:
            with os.fdopen(os.open(path, OPEN_ONLY_FILES), "rb") as file:
                status = os.fstat(file.fileno())
                content = file.read() if stat.S_ISREG(status.st_mode) and is_private(status) else b""
        except OSError:
            return None
        program = content[DIGEST:]
        if content[:DIGEST] != _digest(path.name, program):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return program

    def put(self, key: str, value: bytes) -> None:
        """Keep a program; on failure, warn once and stop keeping any."""
        size = DIGEST + len(value)
        if not self._writes or size > self._limit:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(size)
            self._write(self._path(key), value)
        except OSError as error:
            self._writes = False
            self._warn(
                f"note: {self._directory} cannot keep compiled programs ({error.strerror}), so they are compiled again "
                f"next time; name another directory with --compilation-cache, or off"
            )

    def clear(self) -> None:
        """Remove all programs."""
        try:
            for path in self._files():
                path.unlink(missing_ok=True)
        except OSError as error:
            self._warn(f"note: cannot remove compiled programs from {self._directory}: {error.strerror}")

    def _path(self, key: str) -> Path:
        """Return a program's file. XLA compiles for a number of threads, which JAX's key lacks."""
        return self._directory / f"{key}-{cores()}-{os.environ.get('NPROC', '')}{SUFFIX}"

    def _files(self) -> list[Path]:
        return [path for path in self._directory.glob("*") if path.suffix in (SUFFIX, UNFINISHED)]

    def _write(self, path: Path, value: bytes) -> None:
        descriptor, name = tempfile.mkstemp(suffix=UNFINISHED, dir=self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_digest(path.name, value) + value)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _make_room(self, size: int) -> None:
        """Remove the least recently used programs, so that `size` more bytes fit."""
        if self._bytes is not None and self._bytes + size <= self._limit:
            self._bytes += size
            return
        found = []
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                status = path.stat()
                if path.suffix == SUFFIX:
                    found.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < time.time() - ABANDONED:
                    path.unlink()
        total = sum(n for _, n, _ in found) + size
        if total > self._limit:
            for _, n, path in sorted(found):
                path.unlink(missing_ok=True)
                total -= n
                if total <= KEPT * self._limit:
                    break
        self._bytes = total


def _digest(name: str, program: bytes) -> bytes:
    """Hash a program with its name, so that one file cannot stand in for another."""
    return hashlib.sha256(name.encode() + b"\0" + program).digest()
