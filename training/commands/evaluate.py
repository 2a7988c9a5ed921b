"""Measure a trained run on held-out data, beside simpler methods.

    scripts/evaluate.py runs/docs
    scripts/evaluate.py runs/words --limit 1000

Prints a table and some samples, and writes both to RUN/evaluation-PART.json; those on other data (--data) to a file
with a number of these data in its name. Exit status: 0 done; 2 wrong usage or
input.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from training.commands import compilation_cache
from training.commands.arguments import Parser, at_least
from training.commands.terminal import say, show
from training.data.loading import load_run_data
from training.disk import reason, write_atomically
from training.evaluation.report import PARTS, Comparison, compare, default_part
from training.runs.directory import RunDirectory, load_run


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("run", metavar="RUN", help="directory of the run")
    main.add_argument("--part", choices=PARTS, help="which held-out data (default: test, or validation without it)")
    main.add_argument("--limit", type=at_least(1), metavar="N", help="examples to translate or classify (default: all)")
    main.add_argument("--data", nargs="+", metavar="NAME|FILE", help="other data to evaluate on (default: the run's)")
    main.add_argument("--cache", metavar="DIR", help="where tokens and fetched data are kept")
    compilation_cache.add_flags(main)
    return main


def show_table(comparison: Comparison) -> None:
    """Print the table, and what else was found."""
    columns = list(dict.fromkeys(name for figures in comparison.rows.values() for name in figures))
    width = max(map(len, comparison.rows))
    print(" " * width + "".join(f"{column:>15}" for column in columns))
    for method, figures in comparison.rows.items():
        cells = (f"{figures[column]:15.4f}" if column in figures else " " * 15 for column in columns)
        print(f"{method:<{width}}" + "".join(cells))
    for line in comparison.samples:
        show(line)
    for package in comparison.missing:
        say(f"(with {package} installed, there would be more to compare with)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    compilation_cache.begin(arguments)
    run = load_run(arguments.run)
    files = RunDirectory(arguments.run)
    description = files.description()
    cache = Path(arguments.cache) if arguments.cache else None
    if arguments.data:
        settings = dataclasses.replace(description.settings, data=tuple(arguments.data), validation_data=())
        description = description._replace(settings=settings)
    data = load_run_data(description.settings, tokenizer=run.tokenizer, cache_dir=cache)
    if not arguments.data:
        files.check_continues(description._replace(fingerprints=description.fingerprints | data.fingerprints))
    part = arguments.part or default_part(data)
    comparison = compare(run, description, data, part, limit=arguments.limit or 0)
    print(f"{part} data of {files.path}:")
    show_table(comparison)
    results = {"part": part, "data": arguments.data, "rows": comparison.rows, "samples": comparison.samples}
    results = {name: value for name, value in results.items() if value is not None}
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    other = f"-{data.corpus.fingerprint[:8]}" if arguments.data else ""  # the record of the run's own data stays
    kept = files.path / f"evaluation-{part}{other}.json"
    try:
        write_atomically(kept, lambda path: path.write_text(text, encoding="utf-8"))
    except OSError as error:
        say(f"note: cannot write {kept}: {reason(error)}")
    return 0
