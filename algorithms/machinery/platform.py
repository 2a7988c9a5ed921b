"""The platform that a program is compiled for."""

import functools
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
from jax import Array
from jax.sharding import AbstractDevice, AbstractMesh

CPU_INFO = Path("/proc/cpuinfo")
"""Where Linux says what the processor can do."""

PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
"""Name of a platform in ``jax.export`` → that of its devices."""


def for_platform(platform: str) -> AbstractContextManager[Any]:
    """A context in which what is traced computes with the kernels of a platform that this machine need not have.

    JAX learns what a program is for when it lowers it, after it was traced, and kernels are chosen while it is traced::

        with for_platform("tpu"):
            exported = jax.export.export(jax.jit(f), platforms=("tpu",))(x)

    JAX exports cuDNN's kernel where ``disabled_checks`` allows ``DisabledSafetyCheck.custom_call`` of
    ``"__cudnn$fmhaSoftmax"`` and ``"__cudnn$fmhaSoftmaxBackward"``. A program for ``"cpu"`` uses no instructions that
    only some processors have. In the context of a mesh, its devices say what a program is for.

    Args:
        platform: ``"cpu"``, ``"cuda"`` or ``"tpu"``, as in ``jax.export``.

    Raises:
        ValueError: another platform.
    """
    if platform not in PLATFORMS:
        raise ValueError(f"for_platform: expected one of {', '.join(map(repr, PLATFORMS))}, got {platform!r}")
    device = AbstractDevice(device_kind=platform, num_cores=None, platform=PLATFORMS[platform])
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), (), abstract_device=device))


def platform_of(X: Array) -> str:
    """The platform that is compiled for: that of the mesh X lies on, of the mesh in use, or the default device's."""
    for mesh in (jax.typeof(X).sharding.mesh, jax.sharding.get_abstract_mesh()):
        if getattr(mesh, "abstract_device", None) is not None:
            return mesh.abstract_device.platform
    device = getattr(jax.config, "jax_default_device", None)  # a device, or the name of a platform
    return getattr(device, "platform", device) or jax.default_backend()


def for_this_machine() -> bool:
    """Whether a program for a CPU is for this machine's: what ``for_platform`` is for may run on any other one."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.abstract_device is None or bool(mesh.axis_names)


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether this machine's processor multiplies bfloat16 faster than float32, where one can ask it: by AMX, or by
    AMD's AVX-512. Intel's AVX-512 has half the speed of its float32.
    """
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "amx_bf16" in flags or ("avx512_bf16" in flags and "AuthenticAMD" in text)
