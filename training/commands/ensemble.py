"""Evaluate several runs as one model: by the mean of their probabilities, and by the mean of their parameters.

    scripts/ensemble.py runs/seed0 runs/seed1 runs/seed2         # each, and the ensemble
    scripts/ensemble.py runs/docs --checkpoints                  # the checkpoints of a run, the ensemble, the average
    scripts/ensemble.py runs/docs --checkpoints --average out    # and write the average as a run

The held-out data are those of the first run. Exit status: 0 done; 2 invalid usage or input.
"""

import argparse
from collections.abc import Sequence

import jax

from training.command_line import compilation_cache
from training.command_line.arguments import Parser, add_cache, add_lines, local
from training.command_line.terminal import print_table
from training.data.loading import load_run_data, make_dataset
from training.evaluation.ensembles import averaged, check_alike, ensemble_totals, of_checkpoints
from training.evaluation.held_out import evaluate
from training.runs.directory import Run, RunDirectory, RunError
from training.runs.trained_model import load_run


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs with the same task and tokenizer")
    main.add_argument("--checkpoints", action="store_true", help="use the checkpoints of one run")
    main.add_argument("--average", metavar="DIR", type=local, help="write the mean of the parameters as a new run")
    add_cache(main.add_argument)
    add_lines(main.add_argument)
    return main


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> None:
    """Run the command line."""
    members = _members(arguments.runs, checkpoints=arguments.checkpoints, lines=arguments.lines)
    names, runs = list(members), list(members.values())
    one_model = arguments.checkpoints or bool(arguments.average)
    check_alike(runs, names, sizes=one_model)
    if arguments.average and RunDirectory(arguments.average).path.exists():
        raise RunError(f"--average: expected a new directory, got {arguments.average}, which exists; name another one")
    description = RunDirectory(arguments.runs[0], lines=arguments.lines).description()
    data = load_run_data(description.settings, tokenizer=runs[0].tokenizer, cache_dir=arguments.cache)
    held_out = make_dataset(description.settings, data.stores.validation, tokenizer=runs[0].tokenizer)
    groups = {name: [run] for name, run in members.items()} | {"the ensemble": runs}
    if one_model:
        groups["the average"] = [averaged(runs)]
    rows = []
    for name, group in groups.items():
        totals = jax.jit(ensemble_totals(group, description.settings))
        found = evaluate(totals, [run.theta for run in group], held_out.evaluation_batches())
        rows.append([name, found["loss"], found["accuracy"]])
    print_table(["", "loss", "accuracy"], rows)
    if arguments.average:
        files = RunDirectory(arguments.average)
        files.begin(description, runs[0].tokenizer)
        files.save_parameters(averaged(runs).theta)
        print(f"The average is in {files.path}.")


def _members(paths: Sequence[str], *, checkpoints: bool, lines: Sequence[str]) -> dict[str, Run]:
    """Return the models by name, or raise RunError if there are fewer than two."""
    if checkpoints and len(paths) > 1:
        raise RunError(f"--checkpoints: expected one run, got {len(paths)}; leave --checkpoints out, or name one")
    if checkpoints:
        found = {f"step {step}": run for step, run in of_checkpoints(paths[0], lines=lines).items()}
    else:
        found = {path: load_run(path, lines=lines) for path in paths}
    if len(found) < 2:
        more = "train with a larger --max-to-keep" if checkpoints else "name more runs, or add --checkpoints"
        raise RunError(f"expected several models, got {len(found)} in {paths[0]}; {more}")
    return found
