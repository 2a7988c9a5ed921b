"""Compare the speed and memory of the algorithms with alternatives, and print Markdown tables.

    python scripts/benchmark.py                 everything, some minutes
    python scripts/benchmark.py attention       one part
    python scripts/benchmark.py hardware        for whoever has a GPU or a TPU, see below

The candidates of a table alternate, so that other load on the machine affects all of them; times are medians with the
lower and upper quartile. PyTorch and transformers are included if installed (pip install -e .[compare]).

`hardware` compares each kernel of this machine with the oracle, and the default step of train.py, attention and
decoding with plain JAX and PyTorch, prints them, and writes them to build/hardware.md; if a kernel is wrong, it says
which, and the exit status is 1. On a CPU it is a self-test with small sizes.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from training.benchmarks import accelerators, attention, decode, hybrid, startup, training_step
from training.benchmarks.timing import machine
from training.command_line.arguments import Parser, at_least

PARTS = {
    "attention": attention.run,
    "windows": attention.windows,
    "memory": lambda _: attention.memory() + "\n\n" + training_step.loss_memory(),
    "training": training_step.run,
    "generation": decode.run,
    "llama": decode.llama,
    "int8": decode.narrow,
    "hybrid": hybrid.run,
    "startup": startup.run,
    "compilation": lambda _: training_step.compilation(),
    "accelerators": accelerators.run,
}


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    parts = f"any of {', '.join(PARTS)} and hardware (default: all but hardware)"
    main.add_argument("part", nargs="*", metavar="PART", help=parts)
    main.add_argument("--rounds", type=at_least(2), default=11, metavar="N", help="runs per candidate (default: 11)")
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    unknown = sorted(set(arguments.part) - {*PARTS, "hardware"})
    if unknown:
        parser().error(f"PART: expected any of {', '.join(PARTS)} and hardware, got {unknown[0]!r}")
    print(f"Measured on {machine()}.", flush=True)
    status = 0
    for name in arguments.part or PARTS:
        if name == "hardware":
            needs_train: Any = importlib.import_module("training.commands.hardware")
            status = needs_train.run(arguments.rounds)
        else:
            print(f"\n{PARTS[name](arguments.rounds)}", flush=True)
    return status
