"""A parent process that watches over one of several training processes.

JAX's runtime aborts a process that loses another one, bypassing all handlers. So each trains in a child process, and
its parent prints how that ended and returns an exit status. The parent forwards signals as SIGTERM, which JAX's runtime
announces to all processes, so that they stop at the same update; a second one kills the child. A child exits when its
parent is gone.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from training.command_line.running import called
from training.command_line.terminal import say
from training.runs.interrupts import handling

STREAMS = "FORMAL_ALGORITHMS_STREAMS"  # variable that gives the child the parent's descriptors of stdout and stderr
CONNECTED = "<connected to the coordinator>"
WORKER = "import os, sys; from training.commands import train_main; os._exit(train_main(sys.argv[1:]))"


def is_supervised() -> bool:
    """Whether this process is a child of `supervise`."""
    return STREAMS in os.environ


def supervise(argv: Sequence[str], *, who: str, advice: Callable[[], str]) -> int:
    """Train in a child process, and return the exit status; `advice` says what to do if another process ended it."""
    with tempfile.NamedTemporaryFile("w+", prefix="jax-", suffix=".log", errors="replace", delete=False) as log:
        streams = os.dup(1), os.dup(2)
        environment = os.environ | {STREAMS: f"{streams[0]} {streams[1]}", "PYTHONPATH": os.pathsep.join(sys.path)}
        options = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log, "pass_fds": streams, "env": environment}
        child = subprocess.Popen([sys.executable, "-c", WORKER, *argv], **options)

        def pass_on(number: int, frame: FrameType | None) -> None:
            (child.kill if signals else child.terminate)()
            signals.append(number)

        signals: list[int] = []
        with handling(pass_on):
            status = child.wait()
        if status >= 0:
            Path(log.name).unlink()
            return status
        connected = CONNECTED in Path(log.name).read_text(errors="replace")
    why = "lost another process, or was killed"
    if not connected:
        why = "found no coordinator, or not all of the others, or its port is taken"
    say(f"{called('train')}: {who} {why}; {advice()} (JAX's log is {log.name})")
    return 1


def enter() -> None:
    """In the child: print to the parent's streams, and exit when it is gone."""
    for name, stream in zip(("stdout", "stderr"), os.environ[STREAMS].split(), strict=True):
        setattr(sys, name, os.fdopen(int(stream), "w", buffering=1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal also sends it to the parent, which forwards it

    def wait_for_parent():
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def note_connection() -> None:
    """In the child: tell the parent that all processes have connected."""
    os.write(2, CONNECTED.encode())
