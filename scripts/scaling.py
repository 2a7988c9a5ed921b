"""The command of scripts/benchmarks/accelerators/scaling.py, what training steps cost on accelerators: see --help."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from scripts.benchmarks.accelerators import ENVIRONMENT
from training.commands import Arguments, command


@command
def scaling_main(argv: Arguments) -> int:
    """Run the command."""
    from scripts.benchmarks.accelerators.scaling import main

    return main(argv)


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)  # before JAX is imported
    sys.exit(scaling_main())
