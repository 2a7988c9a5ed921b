"""Runs tests, each time in a fork of a process that has imported the libraries, which takes longer than most tests.

Reads the arguments of pytest, a JSON list a line, from standard input, and answers with pytest's exit status and what it
printed; the status is negative if the tests were ended after the number of seconds in the command's argument.
"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import warnings

import chex  # noqa: F401 # these are imported for the forks
import hypothesis.extra.numpy  # noqa: F401
import jax.experimental.pallas.tpu  # noqa: F401
import optax  # noqa: F401
import orbax.checkpoint  # noqa: F401
import pytest
import tokenizers  # noqa: F401


def answer(arguments: list[str], seconds: int) -> tuple[int, str]:
    """Return pytest's exit status, or the negative number of the signal that ended it, and what it printed."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()  # before JAX has started a backend, hence without threads of its own
        if child == 0:
            signal.alarm(seconds)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            status = pytest.main(["-W", "ignore:Module already imported", *arguments])
            sys.stdout.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read().decode(errors="replace")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=r"os\.fork")
    sys.path[0] = str(pathlib.Path.cwd())  # the folder of this file has modules of the tests, not packages
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), int(sys.argv[1]))), flush=True)
