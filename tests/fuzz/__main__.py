"""The command `python -m tests.fuzz`."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is what takes the time

import sys

import jax

from tests.fuzz.runner import main

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main())
