"""Measure the speed and the memory of the algorithms beside the alternatives, in one run; print Markdown tables.

    python scripts/benchmark.py                 all of it, some minutes
    python scripts/benchmark.py attention       one part

The candidates of a table alternate, so that they share what else the machine does; times are medians with the lower and
the upper quartile. PyTorch and transformers are measured where they are installed (pip install -e .[compare]).
"""

from collections.abc import Sequence

from scripts.benchmarks import accelerators, attention, decode, startup, training_step
from scripts.benchmarks.timing import machine
from training.commands.arguments import Parser, at_least

PARTS = {
    "attention": attention.run,
    "windows": attention.windows,
    "memory": lambda _: attention.memory() + "\n\n" + training_step.loss_memory(),
    "training": training_step.run,
    "generation": decode.run,
    "llama": decode.llama,
    "int8": decode.narrow,
    "startup": startup.run,
    "compilation": lambda _: training_step.compilation(),
    "accelerators": accelerators.run,
}


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("part", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    main.add_argument(
        "--rounds", type=at_least(2), default=11, metavar="N", help="how often each candidate runs (default: 11)"
    )
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, print the tables, and return the exit status."""
    arguments = parser().parse_args(argv)
    unknown = sorted(set(arguments.part) - set(PARTS))
    if unknown:
        parser().error(f"unknown part {unknown[0]!r}: expected any of {', '.join(PARTS)}")
    print(f"Measured on {machine()}.", flush=True)
    for name in arguments.part or PARTS:
        print(f"\n{PARTS[name](arguments.rounds)}", flush=True)
    return 0
