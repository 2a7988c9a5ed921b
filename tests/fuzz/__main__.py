"""The command `python -m tests.fuzz`."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_ENABLE_X64"] = "1"
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is what takes the time

import sys

from tests.fuzz.runner import main

if __name__ == "__main__":
    sys.exit(main())
