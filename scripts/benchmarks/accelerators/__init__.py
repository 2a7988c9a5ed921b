"""What steps cost on TPUs and H100s, by their compilers, beside a plain GPT-2 in the usual layout; nothing is run."""

import os
import subprocess
import sys

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # what runs here; the compilers for other devices are asked for by name
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to ask
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # of this machine; any name, else libtpu complains
    "TPU_LIBRARY_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # there is no driver whose version could be checked
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",  # nothing to time kernels on
}
"""What the process that compiles needs to have when JAX is imported."""


def run(_: int = 0) -> str:
    """Compile for each platform whose compiler is installed, in a process of its own, and return the tables."""
    command = [sys.executable, "-m", f"{__name__}.steps"]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.rstrip()
