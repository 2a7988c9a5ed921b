"""Draw the losses of a run, from its metrics.jsonl; the file's extension decides the format.

python -m training.commands.loss_curve runs/demo docs/demo.svg
"""

import sys

from training.commands import Arguments, command
from training.commands.arguments import Parser, local
from training.runs.directory import RunDirectory, RunError
from training.runs.metrics import plot_losses, read_metrics


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("run", metavar="RUN", help="directory of the run")
    main.add_argument("picture", metavar="FILE", type=local, help="picture to write: .svg, .png or .pdf")
    return main


@command
def loss_curve_main(argv: Arguments) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    files = RunDirectory(arguments.run)
    lines = read_metrics(files.metrics)
    if not lines:
        raise RunError(f"{files.metrics}: expected metrics of at least one step, got none; train the run first")
    plot_losses(lines, arguments.picture, title=files.path.name)
    return 0


if __name__ == "__main__":
    sys.exit(loss_curve_main())
