"""Compare the speed and memory of the algorithms with alternatives, and print Markdown tables.

    python scripts/benchmark.py                 everything but hardware and scaling, some minutes
    python scripts/benchmark.py attention       one part
    python scripts/benchmark.py hardware        checks and measures a GPU or a TPU, see below
    python scripts/benchmark.py scaling …       estimates a training step on many accelerators: scaling --help

The candidates of a table alternate, so that other load on the machine affects all of them; times are medians with the
lower and upper quartile. PyTorch and transformers are included if installed (pip install -e ".[compare]").

`hardware` compares each kernel of this machine with the oracle, and the default step of train.py, attention and
decoding with plain JAX and PyTorch; it times 100 steps of train.py, and serve.py: 1 and 16 clients. It prints all this,
and writes it to build/hardware.md; if a kernel is wrong, it says which, and the exit status is 1. On a CPU it is a
self-test with small sizes.
"""

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from training.benchmarks import attention, decode, training_step
from training.benchmarks.timing import machine
from training.command_line.arguments import Parser, at_least
from training.commands import scaling

PARTS = {
    "attention": attention.run,
    "windows": attention.windows,
    "memory": lambda _: attention.memory() + "\n\n" + training_step.loss_memory(),
    "training": training_step.run,
    "generation": decode.run,
    "llama": decode.llama,
    "int8": decode.narrow,
}
HARDWARE = ("kernels", "step", "large-step", "attention", "decoding", "training", "serving")
"""The parts of `hardware`."""


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    parts = main.add_subparsers(dest="part", metavar="PART")
    rounds: dict[str, Any] = {"type": at_least(2), "metavar": "N", "help": "runs per candidate (default: 11)"}
    main.add_argument("--rounds", default=11, **rounds)
    of_parts = {name: parts.add_parser(name) for name in (*PARTS, "hardware")}
    for part in of_parts.values():
        part.add_argument("--rounds", default=argparse.SUPPRESS, **rounds)
    chosen = f"which of its parts, divided by commas: {', '.join(HARDWARE)} (default: all)"
    of_parts["hardware"].add_argument("--parts", type=_parts, default=HARDWARE, metavar="PART,…", help=chosen)
    scaling.add_arguments(parts.add_parser("scaling", description=scaling.__doc__))
    return main


def _parts(text: str) -> tuple[str, ...]:
    """Return the parts of `hardware` that are named: an argument type."""
    unknown = sorted(set(text.split(",")) - {*HARDWARE})
    if unknown:
        raise argparse.ArgumentTypeError(f"expected any of {', '.join(HARDWARE)}, got {unknown[0]!r}")
    return tuple(text.split(","))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    if arguments.part == "scaling":
        return scaling.run(arguments)
    print(f"Measured on {machine()}.", flush=True)
    if arguments.part == "hardware":
        needs_train: Any = importlib.import_module("training.commands.hardware")
        return needs_train.run(arguments.rounds, arguments.parts)
    for name in [arguments.part] if arguments.part else PARTS:
        print(f"\n{PARTS[name](arguments.rounds)}", flush=True)
    return 0
