"""A CPU as several devices, and the memory that it keeps; each case in a process of its own, since JAX asks once."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from training.mesh.cpu import keep_memory

if sys.argv[1] == "keep":
    keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 22)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(), faults()
print(sum(faults() for _ in range(10)))
"""


def printed(code, *arguments, **environment):
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "NPROC")}
    command = [sys.executable, "-c", code, *arguments]
    return int(subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.end_to_end
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has mallopt")
def test_freed_memory_is_kept():
    """An array of 32 MiB is 16 to 8192 pages, by their size, which the system clears once, and not every time."""
    given_back, kept = (printed(FAULTS, how) for how in ("give", "keep"))
    assert kept <= 10 < 160 <= given_back, (given_back, kept)
