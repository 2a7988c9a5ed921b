"""CPU settings, made before JAX starts: the number of devices, and keeping freed memory.

By default the C library returns what XLA frees after a step to the system, which then zeroes it for the next step.
"""

import contextlib
import ctypes
import os
import sys

import jax

KEPT = 2**31 - 1
MALLOPT = {-1: KEPT, -3: KEPT, -8: 1}
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in bytes: keep freed memory; M_ARENA_MAX: one heap serves all threads."""


def as_devices(n: int) -> None:
    """Make the CPU n devices, if it has as many cores, and neither the environment nor JAX sets a number."""
    is_set = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if is_set or getattr(jax.config, "jax_num_cpu_devices", -1) >= 0 or not 1 < n <= cores():
        return
    os.environ.setdefault("NPROC", str(2 * cores()))  # devices waiting for each other occupy a thread each
    with contextlib.suppress(RuntimeError):  # JAX has already started
        jax.config.update("jax_num_cpu_devices", n)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Make glibc keep freed memory; other C libraries are left alone."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt:
            for parameter, value in MALLOPT.items():
                mallopt(parameter, value)
