"""Draw the losses of a run, or of several to compare, from metrics.jsonl; the file's extension decides the format.

scripts/loss_curve.py runs/demo docs/demo.svg
scripts/loss_curve.py runs/hybrid runs/attention hybrid.png
"""

from collections.abc import Sequence

from training.command_line.arguments import Parser, local
from training.runs.directory import RunDirectory, RunError
from training.runs.loss_plots import Losses, compare_losses
from training.runs.metrics import read_metrics


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs")
    main.add_argument("picture", metavar="FILE", type=local, help="picture to write: .svg, .png or .pdf")
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    found = {}
    for files in map(RunDirectory, arguments.runs):
        found[files.path.name] = lines = read_metrics(files.metrics)
        if not lines:
            raise RunError(f"{files.metrics}: expected metrics of at least one step, got none; train the run first")
    if len(found) < len(arguments.runs):
        raise RunError("RUN: expected runs of different names, which the picture shows; rename one")
    if len(found) > 1:
        compare_losses(found, arguments.picture)
    else:
        ((name, lines),) = found.items()
        Losses(lines).plot(arguments.picture, title=name)
    return 0
