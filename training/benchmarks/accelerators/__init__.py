"""Costs of steps on TPUs and H100s, read from compiled programs; nothing is run."""

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # the backend here; the other compilers are selected explicitly
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # any name satisfies libtpu
    "TPU_LIBRARY_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # there is no driver
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",  # there is no GPU to time kernels on
}
"""Environment variables of the process that compiles, needed before JAX is imported."""
