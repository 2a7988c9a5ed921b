"""What this machine's processor can do: the one place where the package reads a file."""

import functools
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
"""The file in which Linux lists the processor's features."""


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether this machine's processor multiplies bfloat16 faster than float32: with AMX, or with AMD's AVX-512.

    Intel's AVX-512 runs bfloat16 at half the speed of float32. False if the processor's features cannot be read.
    """
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "amx_bf16" in flags or ("avx512_bf16" in flags and "AuthenticAMD" in text)
