"""The platform that a program is compiled for."""

import functools
from pathlib import Path

import jax
from jax import Array

CPU_INFO = Path("/proc/cpuinfo")
"""Where Linux says what the processor can do."""


def platform_of(X: Array) -> str:
    """The platform that is compiled for: that of the mesh X lies on, of the mesh in use, or the default device's."""
    for mesh in (jax.typeof(X).sharding.mesh, jax.sharding.get_abstract_mesh()):
        if getattr(mesh, "abstract_device", None) is not None:
            return mesh.abstract_device.platform
    device = getattr(jax.config, "jax_default_device", None)  # a device, or the name of a platform
    return getattr(device, "platform", device) or jax.default_backend()


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether this machine's processor multiplies bfloat16 itself, by AVX-512 or AMX, where one can ask it."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags
