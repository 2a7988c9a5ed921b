"""The command of training/commands/load_of_experts.py, from a checkout: see --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from training.commands import load_of_experts_main

if __name__ == "__main__":
    sys.exit(load_of_experts_main())
