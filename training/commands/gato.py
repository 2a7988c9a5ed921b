"""Demonstrate a run of the task gato: one set of weights that continues text, names digits and balances a pendulum.

    scripts/train.py gato --run runs/gato            # trains it, in a few minutes
    scripts/gato.py runs/gato                        # shows all three, with two pictures in runs/gato
    scripts/gato.py runs/gato --prompt "The " --pictures docs

Exit status: 0 done; 2 invalid usage or input.
"""

import argparse
from pathlib import Path

from training.command_line import compilation_cache
from training.command_line.arguments import Parser, add_lines, local
from training.command_line.terminal import show
from training.data.gato import digits
from training.data.records import DataError
from training.disk import reason
from training.evaluation.gato import named, picture_of_digits, picture_of_pendulum
from training.generation.gato import Gato
from training.generation.text import Options, answerer_for
from training.runs.trained_model import load_run

L_GEN = 60


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("run", metavar="RUN", help="directory of the run")
    main.add_argument("--prompt", default="The ", metavar="TEXT", help='text to continue (default: "The ")')
    main.add_argument("--pictures", type=local, metavar="DIR", help="directory for the pictures (default: RUN)")
    add_lines(main.add_argument)
    return main


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> None:
    """Run the command line."""
    run = load_run(arguments.run, lines=arguments.lines)
    gato = Gato(run)
    where = arguments.pictures or Path(arguments.run)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"--pictures: cannot make {where}: {reason(error)}") from None
    (answers,) = answerer_for(run, Options(l_gen=L_GEN)).answers([arguments.prompt])
    show(f"text: {arguments.prompt}{answers[0]['text']}")
    held_out = digits.load("validation")
    pairs = zip(named(gato, held_out), held_out.labels, strict=True)
    right = sum(name == digits.NAMES[label] for name, label in pairs)
    picture_of_digits(gato, where / "digits.png")
    print(f"digits: {right} of {len(held_out.labels)} held-out images named; drawings in {where / 'digits.png'}")
    found = picture_of_pendulum(gato, where / "pendulum.png")
    print(
        f"pendulum: upright {100 * found['upright']:.0f} % of the last 5 seconds, return {found['return']:.0f}; "
        f"{where / 'pendulum.png'}"
    )
