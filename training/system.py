"""Differences of operating systems: POSIX functions where they exist, otherwise the nearest equivalent.

Everything in `training` that only some systems have is here, so that the rest imports and works on all of them.
"""

import contextlib
import ctypes
import importlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
    import resource
except ModuleNotFoundError:  # Windows
    fcntl = resource = None

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
"""Linux's directories of processes and of control groups."""
BROKEN_PIPE = 128 + 13
"""Exit status of a command whose reader has closed the pipe: 128 + SIGPIPE."""
OUT_OF_TIME = -signal.SIGPROF if hasattr(signal, "setitimer") else 124
"""Exit status, as `subprocess` gives it, of a process that `time_limit` ended."""


def peak_memory() -> int:
    """Return the most bytes that this process has used; 0 if the system does not say."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def wait_for_lock(descriptor: int) -> None:
    """Wait until no other process has this file locked, and lock it until this one ends (not on Windows)."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def memory_limit() -> int:
    """Return the bytes that this process may use, within its control groups; the largest integer if nothing says."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize
    return min([machine, *(limit for limit, _ in _control_groups())])


def available_memory() -> int:
    """Return the bytes of memory that this process can still get, within the limits of its control groups on Linux."""
    available = importlib.import_module("psutil").virtual_memory().available
    return min([available, *(limit - used for limit, used in _control_groups())])


def _control_groups() -> Iterator[tuple[int, int]]:
    """Yield the limit of each control group of this process, and the bytes used without the page cache."""
    with contextlib.suppress(OSError):
        of_process = (PROC / "self" / "cgroup").read_text().splitlines()
        own = next((line.removeprefix("0::/") for line in of_process if line.startswith("0::/")), "")
        for folder in (GROUPS / own, *(GROUPS / own).parents):
            with contextlib.suppress(OSError, ValueError, KeyError):  # no such limit
                limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
                sizes = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield limit, used - int(sizes["active_file"]) - int(sizes["inactive_file"])
            if folder == GROUPS:
                return


def give_back_memory() -> None:
    """Return freed memory to the system, which glibc, used by most Linux systems, would keep for this process."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another library of C
        ctypes.CDLL(None).malloc_trim(0)


def is_private(status: os.stat_result) -> bool:
    """Return whether a file is this user's, and nobody else may write it; on Windows, its folder sees to that."""
    others = stat.S_IWGRP | stat.S_IWOTH
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & others)


def edit_lines() -> None:
    """Let `input` edit lines and remember them; Windows's terminals do without."""
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("readline")


def limit_process(memory: int) -> None:
    """Forbid this process to write files and to use more bytes of memory, as far as the system can."""
    if resource is None:
        return
    for what, most in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, memory)):
        with contextlib.suppress(ValueError, OSError):  # a system without this limit
            resource.setrlimit(what, (most, most))


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process with `OUT_OF_TIME` if the block takes longer: by the kernel, or else by a thread."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return
    timer = threading.Timer(seconds, os._exit, (OUT_OF_TIME,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
