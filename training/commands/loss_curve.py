"""Draw the losses of a run, or of several to compare, from metrics.jsonl; the file's extension decides the format.

python -m training.commands.loss_curve runs/demo docs/demo.svg
python -m training.commands.loss_curve runs/hybrid runs/attention hybrid.png
"""

import sys

from training.commands import Arguments, command
from training.commands.arguments import Parser, local
from training.runs.directory import RunDirectory, RunError
from training.runs.metrics import compare_losses, plot_losses, read_metrics


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs")
    main.add_argument("picture", metavar="FILE", type=local, help="picture to write: .svg, .png or .pdf")
    return main


@command
def loss_curve_main(argv: Arguments) -> int:
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
        plot_losses(lines, arguments.picture, title=name)
    return 0


if __name__ == "__main__":
    sys.exit(loss_curve_main())
