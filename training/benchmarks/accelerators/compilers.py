"""The compilers of TPUs and of NVIDIA H100s, usable without either, in this package's `ENVIRONMENT`."""

import contextlib
import os
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from training.system import wait_for_lock

H100 = """gpu_device_info {{ cuda_compute_capability {{ major: 9 }} core_count: 132 fpus_per_core: 128
  clock_rate_ghz: 1.98 memory_bandwidth: 3352320000000 device_memory_size: 84929347584 l2_cache_size: 52428800
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 }}
platform_name: "CUDA" device_description_str: "NVIDIA H100 80GB HBM3" runtime_version {{ major: 12 minor: 9 }}
dnn_version_info {{ major: {} minor: {} }}"""


def tpu(topology: str = "v5e:2x4", chips: int | None = 1) -> Any:
    """Return a mesh of the first chips of a TPU topology such as v5e:2x4, v5p:2x2x1 or v6e:2x4 (None: all), once no
    other process uses libtpu. Raises ModuleNotFoundError, or ValueError if there are fewer chips.
    """
    _installed("libtpu", extra="tpu")
    if not _LOCK:  # a bare descriptor stays open until the process is gone, when libtpu has removed its own lock
        _LOCK.append(os.open(Path(tempfile.gettempdir()) / "compilers-libtpu.lock", os.O_CREAT | os.O_RDWR))
        wait_for_lock(_LOCK[0])
    try:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except Exception as error:  # whatever libtpu raises
        raise ValueError(f"libtpu gives no topology {topology!r}: {str(error).splitlines()[0]}") from error
    return _mesh(devices, chips)


def h100(n: int = 1) -> Any:
    """Return a mesh of n NVIDIA H100 SXM (80 GB), eight per host. Raises ModuleNotFoundError or ValueError."""
    _installed("jax-cuda12-plugin", "jax-cuda13-plugin", extra="cuda12")
    cudnn = _installed("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", extra="cuda12").split(".")
    if n > 8 and n % 8:
        raise ValueError(f"expected at most 8 devices or a multiple of 8, got {n}")
    shape, config = f"1x{max(1, n // 8)}x{min(n, 8)}", H100.format(*cudnn[:2])
    return _mesh(topologies.get_topology_desc(platform="cuda", target_config=config, topology=shape).devices, n)


def _mesh(devices: Any, n: int | None) -> Any:
    if n is not None and n > len(devices):
        raise ValueError(f"expected at most the topology's {len(devices)} chips, got {n}")
    return Mesh(np.array(devices[:n]), ("data",), axis_types=(AxisType.Auto,))


def _installed(*packages: str, extra: str) -> str:
    """Return the version of the first of these packages that is installed."""
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    raise ModuleNotFoundError(f"{packages[0]} is not installed: pip install 'jax[{extra}]' for the compiler")


_LOCK: list[int] = []
