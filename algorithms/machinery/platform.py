"""The platform for which a program is compiled, and the features of this machine's processor."""

import functools
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
from jax import Array
from jax.sharding import AbstractDevice, AbstractMesh

PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
"""Name of a platform in ``jax.export`` → the platform of its devices."""


def for_platform(platform: str) -> AbstractContextManager[Any]:
    """A context in which functions are traced with the kernels of a platform that this machine need not have.

    Kernels are chosen during tracing, but JAX learns the target platform only when it lowers the traced program::

        with for_platform("tpu"):
            exported = jax.export.export(jax.jit(f), platforms=("tpu",))(x)

    To export cuDNN's kernel, JAX needs ``disabled_checks`` with ``DisabledSafetyCheck.custom_call`` of
    ``"__cudnn$fmhaSoftmax"`` and ``"__cudnn$fmhaSoftmaxBackward"``, or with documents and other masks as arrays of
    ``"__cudnn$fmhaScaleBiasSoftmax"`` and ``"__cudnn$fmhaScaleBiasSoftmaxBackward"``. A program for ``"cpu"`` uses
    no instructions that only some processors have. In the context of a mesh, the platform is that of its devices.

    Args:
        platform: ``"cpu"``, ``"cuda"`` or ``"tpu"``, as in ``jax.export``.

    Raises:
        ValueError: for any other platform.
    """
    if platform not in PLATFORMS:
        raise ValueError(f"for_platform: expected one of {', '.join(map(repr, PLATFORMS))}, got {platform!r}")
    device = AbstractDevice(device_kind=platform, num_cores=None, platform=PLATFORMS[platform])
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), (), abstract_device=device))


def platform_of(X: Array) -> str:
    """The target platform: that of the mesh of X, of the mesh in use, or of the default device."""
    for mesh in (jax.typeof(X).sharding.mesh, jax.sharding.get_abstract_mesh()):
        if getattr(mesh, "abstract_device", None) is not None:
            return mesh.abstract_device.platform
    device = getattr(jax.config, "jax_default_device", None)  # a device, or the name of a platform
    return getattr(device, "platform", device) or jax.default_backend()


def for_this_machine() -> bool:
    """Whether a program for a CPU runs on this machine's; under ``for_platform`` it may run on any other."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.abstract_device is None or bool(mesh.axis_names)


CPU_INFO = Path("/proc/cpuinfo")
"""The file in which Linux lists the processor's features, the only one that the package reads."""


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
