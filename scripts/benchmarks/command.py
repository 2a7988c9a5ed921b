"""Measure the speed and the memory of the algorithms beside the alternatives, in one run; print Markdown tables.

    python scripts/benchmark.py                 all of it, some minutes
    python scripts/benchmark.py attention       one part

The candidates of a table alternate, so that they share what else the machine does; times are medians with the lower and
the upper quartile. PyTorch and transformers are measured where they are installed (pip install -e .[compare]).
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from scripts.benchmarks import accelerators, attention, decode, training_step
from scripts.benchmarks.timing import machine

PARTS = {
    "attention": attention.run,
    "memory": lambda _: attention.memory() + "\n\n" + training_step.loss_memory(),
    "training": training_step.run,
    "generation": decode.run,
    "compilation": lambda _: training_step.compilation(),
    "accelerators": accelerators.run,
}


def main() -> None:
    """Parse the command line, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--rounds", type=int, default=11, help="how often each candidate runs (default: 11)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.part) - set(PARTS))
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: expected any of {', '.join(PARTS)}")
    if arguments.rounds < 2:
        parser.error(f"--rounds: expected at least 2, got {arguments.rounds}")
    print(f"Measured on {machine()}.", flush=True)
    for name in arguments.part or PARTS:
        print(f"\n{PARTS[name](arguments.rounds)}", flush=True)


if __name__ == "__main__":
    main()
