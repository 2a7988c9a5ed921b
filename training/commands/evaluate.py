"""Evaluate a trained run on held-out data, and compare it with simpler methods.

    scripts/evaluate.py runs/docs
    scripts/evaluate.py runs/words --limit 1000
    scripts/evaluate.py runs/smollm2 --data chats.jsonl --validation-data held-out.jsonl --l_max 128

Prints a table and some samples, and writes both to RUN/evaluation-PART.json (with --data, to a file whose name also has
a hash of the data).

Exit status: 0 done; 2 invalid usage or input.
"""

import argparse
import dataclasses
import json
from typing import Any

from training.command_line import compilation_cache
from training.command_line.arguments import DTYPES, Parser, UsageError, add_cache, add_model, at_least
from training.command_line.named_models import run_of
from training.command_line.terminal import Bar, print_table, say, show
from training.data.loading import RunData, load_run_data
from training.data.streams import at_commit
from training.disk import reason, write_atomically
from training.evaluation.report import PARTS, Comparison, compare
from training.extras import import_early
from training.interchange.names import MODEL
from training.runs.directory import Description, Run, RunDirectory
from training.runs.trained_model import load_run
from training.settings import Settings
from training.tasks.objectives import resolved

PREDICTING = ("d", "e")
EVERY = 30.0  # seconds between two lines of progress without a terminal


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    add = main.add_argument
    add("run", metavar="RUN", help=MODEL)
    add("--part", choices=PARTS, help="which held-out data (default: test, else validation)")
    add("--limit", type=at_least(1), metavar="N", help="examples to translate or classify (default: all)")
    add("--data", nargs="+", metavar="NAME|FILE", help="other data to evaluate on (default: the run's)")
    held_out = "with --data: the held-out part (default: a twentieth of --data)"
    add("--validation-data", nargs="+", metavar="FILE", help=held_out)
    tokens = "with --data: maximum tokens per sequence (default: the run's)"
    add("--l_max", type=at_least(2), metavar="N", help=tokens)
    computed = "type of the parameters and the computation; auto is the one of the run's training (default: auto)"
    add("--dtype", choices=("auto", *DTYPES), default="auto", help=computed)
    add_cache(add)
    add_model(add)
    return main


def other_settings(arguments: argparse.Namespace, run: Run, settings: Settings) -> Settings:
    """Return the settings of a run with --data in place of its own, or raise UsageError if the flags do not fit."""
    given = {"--validation-data": arguments.validation_data, "--l_max": arguments.l_max}
    if not arguments.data:
        if not settings.data:
            raise UsageError(
                f"--data: expected the data to evaluate on, since {arguments.run} was converted and has none, got "
                "nothing; name a data set or files"
            )
        for flag in (flag for flag, value in given.items() if value):
            raise UsageError(f"{flag}: expected --data with it, got none; name the data, or leave it out")
        return settings
    if arguments.l_max and run.task not in PREDICTING:
        raise UsageError(f"--l_max: expected a run of {' or '.join(PREDICTING)}, got one of {run.task}; leave it out")
    l_max = arguments.l_max or settings.l_max
    if arguments.l_max and l_max > run.config.l_max:
        raise UsageError(f"--l_max: expected at most the model's {run.config.l_max} tokens, got {l_max}")
    named = {"data": tuple(map(at_commit, arguments.data)), "validation_data": tuple(arguments.validation_data or ())}
    return dataclasses.replace(settings, l_max=l_max, **named)


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> None:
    """Run the command line."""
    import_early("tabulate")
    files = RunDirectory(run_of(arguments.run, arguments.cache), lines=arguments.lines)
    description = files.description()
    dtype = resolved(description.settings.dtype if arguments.dtype == "auto" else arguments.dtype)
    run = load_run(files.path, dtype=dtype, lines=arguments.lines)
    description = description._replace(settings=other_settings(arguments, run, description.settings))
    with Bar("tokenizing", every=EVERY, unit="B", unit_scale=True) as reading:
        options: dict[str, Any] = {"tokenizer": run.tokenizer, "cache_dir": arguments.cache}
        data = load_run_data(description.settings, **options, progress=reading.advance)
    if not arguments.data:
        files.check_continues(description._replace(fingerprints=description.fingerprints | data.fingerprints))
    description = description._replace(settings=dataclasses.replace(description.settings, dtype=dtype))
    part = arguments.part or ("test" if len(data.stores.test) else "validation")
    for note in data.notes if arguments.data else ():
        say(f"note: {note}")
    with Bar(f"evaluating on the {part} data of {data.corpus.name}", every=EVERY) as bar:
        comparison = compare(run, description, data, part, limit=arguments.limit or 0, progress=bar.advance)
    print(f"{part} data of {files.path}, {data.corpus.name}, computed in {dtype}:")
    report(comparison, files, description, data, part, of_other_data=bool(arguments.data))


def report(
    comparison: Comparison,
    files: RunDirectory,
    description: Description,
    data: RunData,
    part: str,
    *,
    of_other_data: bool,
) -> None:
    """Print a model's figures beside those of simpler methods, and write them to its run."""
    columns = list(dict.fromkeys(name for figures in comparison.rows.values() for name in figures))
    print_table(["", *columns], [[method, *map(row.get, columns)] for method, row in comparison.rows.items()])
    for line in comparison.samples:
        show(line)
    for package in comparison.missing:
        say(f"note: install {package} for more comparisons")
    settings = description.settings
    other = {"data": [*settings.data]} if of_other_data else {}
    results = {"part": part, "dtype": settings.dtype, **other, "rows": comparison.rows, "samples": comparison.samples}
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    suffix = f"-{data.corpus.fingerprint[:8]}" if other else ""  # leaves the results on the run's own data
    kept = files.path / f"evaluation-{part}{suffix}.json"
    try:
        write_atomically(kept, lambda path: path.write_text(text, encoding="utf-8"))
    except OSError as error:
        say(f"note: cannot write {kept}: {reason(error)}")
