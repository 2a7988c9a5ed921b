"""K-fold cross-validation: train a classifier K times, each time holding out one part of the data to evaluate it on.

    scripts/cross_validate.py runs/folds --folds 5
    scripts/cross_validate.py runs/folds --folds 5 --data reviews.tsv --steps 500

Fold i is the run DIR/fold-i, trained by the task classify with --fold i/K; all other flags are passed on to train.py.
Rerunning the command skips complete folds and resumes the others. Exit status: that of train.py.
"""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from training.command_line.arguments import Parser, at_least, local
from training.command_line.terminal import print_table
from training.commands import train
from training.runs.directory import RunDirectory


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("directory", metavar="DIR", type=local, help="directory for the runs")
    main.add_argument("--folds", type=at_least(2), default=5, metavar="K", help="number of folds (default: 5)")
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments, flags = parser().parse_known_args(argv)
    for name in ("--run", "--fold"):
        if any(word.partition("=")[0] == name for word in flags):
            parser().error(f"{name}: expected none, since each fold has its own; leave it out")
    runs = [RunDirectory(arguments.directory / f"fold-{i + 1}") for i in range(arguments.folds)]
    for i, run in enumerate(runs, 1):
        if run.results.is_file():
            continue
        own = ["--run", str(run.path), "--fold", f"{i}/{arguments.folds}"]
        status = train.main(["classify", *own, *flags])
        if status:
            return status
    results = [json.loads(run.results.read_text()) for run in runs]
    figures = [[float(found["loss"]), found["accuracy"]] for found in results]
    rows: list[Any] = [[f"{i}/{len(runs)}", *of_fold] for i, of_fold in enumerate(figures, 1)]
    for name, of in (("mean", statistics.fmean), ("deviation", statistics.stdev)):
        rows.append([name, *map(of, zip(*figures, strict=True))])
    print_table(["part", "loss", "accuracy"], rows)
    return 0
