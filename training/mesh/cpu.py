"""Settings of a CPU, made before JAX starts: how many devices it counts as, and that freed memory is kept.

The C library gives what XLA frees after a step back to the system, which clears it anew for the next one.
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
    """Let the CPU be n devices, if it has as many cores, and neither the environment nor JAX says how many it is."""
    told = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if told or getattr(jax.config, "jax_num_cpu_devices", -1) >= 0 or not 1 < n <= cores():
        return
    os.environ.setdefault("NPROC", str(2 * cores()))  # devices that wait for each other take a thread each
    with contextlib.suppress(RuntimeError):  # JAX has started
        jax.config.update("jax_num_cpu_devices", n)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Let the C library keep the memory that is freed, where it is glibc."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt:
            for parameter, value in MALLOPT.items():
                mallopt(parameter, value)
