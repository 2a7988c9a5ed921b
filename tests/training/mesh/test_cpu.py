"""A CPU as several devices, and the memory that it keeps; each case in a process of its own, since JAX asks once."""

import os
import subprocess
import sys

import pytest

COUNT = """
import os, sys
from training.mesh.cpu import as_devices

os.sched_getaffinity = lambda _: range(4)
as_devices(int(sys.argv[1]))
import jax

print(jax.device_count())
"""
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "environment", "n"),
    [
        (3, {}, 3),
        (5, {}, 1),  # more than cores
        (3, {"JAX_NUM_CPU_DEVICES": "2"}, 2),
        (3, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, 4),
    ],
)
def test_a_cpu_is_as_many_devices_as_asked(asked, environment, n):
    assert printed(COUNT, str(asked), **environment) == n


@pytest.mark.end_to_end
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has mallopt")
def test_freed_memory_is_kept():
    """An array of 32 MiB is 16 to 8192 pages, by their size, which the system clears once, and not every time."""
    given_back, kept = (printed(FAULTS, how) for how in ("give", "keep"))
    assert kept <= 10 < 160 <= given_back, (given_back, kept)
