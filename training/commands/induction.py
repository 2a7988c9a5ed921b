"""The induction heads of a trained decoder, and a picture of the scores of all heads.

    scripts/induction.py runs/smollm2             # a run, or a converted model
    scripts/induction.py runs/docs --out /tmp/a.png

The model reads sequences of random tokens twice; ablating its induction heads shows how much they lower the loss on the
repeat, compared with other heads of the same layers.

Exit status: 0 done; 2 invalid usage or input; 130 after Ctrl-C.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from training.command_line import compilation_cache
from training.command_line.arguments import Parser, UsageError, add_lines, local
from training.command_line.terminal import say
from training.interpretability import induction
from training.interpretability.induction import Measurements
from training.runs.directory import Run
from training.runs.trained_model import load_run

MIN_INDUCTION = 0.3  # least score of an induction head
B, LENGTH, DRAWS = 4, 50, 5  # sequences that a run reads twice, tokens of each, and random draws of other heads


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    add, picture = main.add_argument, Path("induction.png")
    add("run", metavar="RUN", help="a decoder's run")
    add("--out", type=local, default=picture, metavar="FILE", help=f"picture (default: {picture})")
    add_lines(add)
    return main


def find(run: Run, path: Path) -> None:
    """Print the induction heads of a run and the loss without them, and draw the scores of all heads."""
    config = run.config
    before = run.tokenizer.framed([0], ends=False)[:-1]
    special = run.tokenizer.special.all() if run.tokenizer.special else range(config.N_V - 3, config.N_V)
    ordinary = np.setdiff1d(np.arange(config.N_V), special)
    n = min(LENGTH, (config.l_max - len(before)) // 2)
    if n < 4:
        raise UsageError(f"RUN: expected room for at least 8 tokens, got l_max = {config.l_max}")
    rng = np.random.default_rng(0)
    tokens = induction.twice(rng.choice(ordinary, (B, n)), np.array(before, int))
    say(f"reading {B} sequences of {n} random tokens twice")
    found = jax.tree.map(np.asarray, induction.measured(run.theta, tokens))
    heads = induction.induction_heads(found.induction, MIN_INDUCTION)
    print(f"loss on random tokens: {found.first:.2f} the first time, {found.again:.2f} the second")
    _draw_scores(found, path)
    if not len(heads):
        l, h = np.unravel_index(found.induction.argmax(), found.induction.shape)
        print(f"no induction heads: the largest score is {found.induction.max():.2f}, of head ({l}, {h})")
        return

    def without(chosen):
        return float(induction.loss_without(run.theta, tokens, jnp.asarray(chosen)))

    print("induction head  score  loss the second time without it")
    for l, h in heads:
        print(f"{f'({l}, {h})':>14}  {found.induction[l, h]:5.2f}  {without([[l, h]]):31.2f}", flush=True)
    print(f"without all {len(heads)} of them: {without(heads):.2f}", flush=True)
    drawn = [without(induction.others(heads, (config.L, config.H), rng)) for _ in range(DRAWS)]
    print(f"without {len(heads)} others of the same layers, drawn {DRAWS} times: {min(drawn):.2f} to {max(drawn):.2f}")
    print(f"The scores of all heads are in {path}.")


def _draw_scores(found: Measurements, path: Path) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, of, title in zip(
        figure.subplots(1, 2), (found.previous, found.induction), ("previous token", "induction"), strict=True
    ):
        image = axes.imshow(of, vmin=0, vmax=1, cmap="cividis", aspect="auto", origin="lower")
        axes.set(title=f"Scores: {title}", xlabel="head", ylabel="layer")
    figure.colorbar(image, ax=figure.axes)
    figure.savefig(path, dpi=100)


@compilation_cache.command(parser)
def main(arguments: argparse.Namespace) -> None:
    """Run the command line."""
    if arguments.out.suffix not in (".png", ".svg", ".pdf") or not arguments.out.parent.is_dir():
        raise UsageError(f"--out: expected a .png, .svg or .pdf in an existing directory, got {arguments.out}")
    run = load_run(arguments.run, lines=arguments.lines)
    if run.task != "d":
        raise UsageError(f"RUN: expected a decoder's run (task d), got one of task {run.task}")
    find(run, arguments.out)
