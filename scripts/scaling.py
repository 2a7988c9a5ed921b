"""The command of scripts/benchmarks/accelerators/scaling.py, what training steps cost on accelerators: see --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.benchmarks.accelerators import compile_in_own_process

if __name__ == "__main__":
    sys.exit(compile_in_own_process("scaling", sys.argv[1:]))
