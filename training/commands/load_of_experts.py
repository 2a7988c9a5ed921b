"""Count the tokens that each expert of a run's layers gets from its held-out data, and draw them.

python -m training.commands.load_of_experts runs/experts --picture experts.png
"""

import itertools
import sys

from training.commands import Arguments, command
from training.commands.arguments import Parser, UsageError, add_cache, at_least, local
from training.commands.terminal import run_of
from training.data.loading import load_run_data
from training.interpretability.experts import draw_loads, loads
from training.runs.directory import RunDirectory, load_run


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("run", metavar="RUN", help="directory of the run, of Algorithm 10 with experts")
    main.add_argument("--picture", metavar="FILE", type=local, help="picture to write: .svg, .png or .pdf")
    main.add_argument("--batches", type=at_least(1), default=20, metavar="N", help="how many to read (default: 20)")
    add_cache(main.add_argument)
    return main


@command
def load_of_experts_main(argv: Arguments) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    files = RunDirectory(run_of(arguments.run, arguments.cache))
    run = load_run(files.path)
    if run.task != "d":
        raise UsageError(
            f"RUN: expected a run of d, got one of {run.task}; train one by `train.py d --run RUN --variant MIXTRAL`"
        )
    data = load_run_data(files.description().settings, tokenizer=run.tokenizer, cache_dir=arguments.cache)
    try:
        shares = loads(run.theta, itertools.islice(data.validation.evaluation_batches(), arguments.batches))
    except ValueError as error:
        raise UsageError(f"RUN: {error}") from None
    for l, of_layer in enumerate(shares):
        print(f"layer {l}: " + " ".join(f"{100 * share:.1f} %" for share in of_layer))
    if arguments.picture:
        draw_loads(shares, arguments.picture)
    return 0


if __name__ == "__main__":
    sys.exit(load_of_experts_main())
