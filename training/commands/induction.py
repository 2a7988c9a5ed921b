"""Induction heads: watch them form in attention-only models, or find those of a trained decoder.

    scripts/induction.py                          # trains one- and two-layer models; draws induction.png and
                                                  # induction-circuits.png
    scripts/induction.py runs/smollm2             # names the induction heads of a run, or of a converted model
    scripts/induction.py --seeds 1 --steps 500 --out /tmp/a.png

The models are trained on sequences of random tokens, repeated. A run reads such a sequence twice; ablating its
induction heads shows how much they lower the loss on the repeat, compared with other heads of the same layers.

Exit status: 0 done; 2 invalid usage or input; 130 after Ctrl-C.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from algorithms import DTransformerParams, d_hidden_state
from algorithms.inside import record
from training.command_line import compilation_cache
from training.command_line.arguments import Parser, UsageError, add_lines, at_least, local
from training.command_line.terminal import Bar, say
from training.interpretability import circuits, induction, scores
from training.interpretability.induction import Measured
from training.runs.directory import Run
from training.runs.trained_model import load_run

PERIOD = 20  # tokens of the picture's text, which then repeats them
EVERY = 25  # steps between two measurements
MIN_PREVIOUS = 0.2  # least score of a previous-token head, in the models trained here
MIN_INDUCTION = 0.3  # least score of an induction head
B, LENGTH, DRAWS = 4, 50, 5  # sequences that a run reads twice, tokens of each, and random draws of other heads
BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#666666"  # for color-blind readers (Okabe and Ito)


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    add, picture = main.add_argument, Path("induction.png")
    add("run", metavar="RUN", nargs="?", help="a decoder's run (default: train attention-only models)")
    add("--seeds", type=at_least(1), default=3, metavar="N", help="models per size (default: 3)")
    add("--steps", type=at_least(1), default=1000, metavar="N", help="updates per model (default: 1000)")
    add("--out", type=local, default=picture, metavar="FILE", help=f"picture (default: {picture})")
    add_lines(add)
    return main


class Trained(NamedTuple):
    """A model trained here."""

    steps: list[int]  # of each measurement
    measured: list[Measured]  # its results
    K: list[np.ndarray]  # its K-composition of each head of layer 0 with each of the last; empty for one layer
    without: np.ndarray  # final loss on repeats without each head
    without_previous: float  # final loss on repeats without all previous-token heads
    theta: DTransformerParams  # final parameters


def train(L: int, seed: int, steps: int, progress: Callable[[int], None]) -> Trained:
    """Train a model of L layers, and measure it on the way and at the end."""
    tokens = induction.repeating(jax.random.key(2**31))  # not seen in training
    found, numbers, K = [], [0], []
    theta: Any = None
    for step, theta in induction.trained(jax.random.key(seed), L, steps, EVERY):
        found.append(jax.tree.map(np.asarray, induction.measured(theta, tokens)))
        if L > 1:
            K.append(np.asarray(circuits.composition_scores(theta.layers.attention)["K"][0, :, -1]))
        progress(step - numbers[-1])
        numbers.append(step)
    heads = list(np.ndindex(L, induction.CONFIG.H))
    each = [induction.loss_without(theta, tokens, jnp.array([head])) for head in heads]
    previous = [head for head in heads if found[-1].previous[head] >= MIN_PREVIOUS]
    together = found[-1].again
    if previous:
        together = induction.loss_without(theta, tokens, jnp.array(previous))
    return Trained(numbers[1:], found, K, np.reshape(each, (L, -1)), float(together), theta)


def _layers(L: int) -> str:
    return f"{L} layer{'s' * (L > 1)}"


def report(L: int, seed: int, trained: Trained) -> None:
    """Print the final measurements of a model."""
    last = trained.measured[-1]
    print(f"{_layers(L)}, seed {seed}: loss on repeats {last.again:.2f} (guessing: {induction.GUESSING:.2f})")
    if L == 1:
        print(f"  largest scores: previous token {last.previous.max():.2f}, induction {last.induction.max():.2f}")
        return
    print("  head     previous token  induction  loss on repeats without it")
    for l, h in np.ndindex(last.previous.shape):
        scores = f"{last.previous[l, h]:14.2f} {last.induction[l, h]:10.2f}"
        print(f"  ({l}, {h})  {scores}  {trained.without[l, h]:26.2f}")
    names = ", ".join(f"({l}, {h})" for l, h in np.argwhere(last.previous >= MIN_PREVIOUS)) or "none"
    print(f"  without all previous-token heads, {names}: {trained.without_previous:.2f}")
    print(f"  largest K-composition of two heads: {trained.K[0].max():.2f} before, {trained.K[-1].max():.2f} after")


def draw(models: dict[int, list[Trained]], path: Path) -> None:
    """Draw losses, scores, K-composition and ablations of all models, given by their number of layers."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    (loss, score), (composition, ablation) = figure.subplots(2, 2)
    for L, several in models.items():
        style: dict[str, Any] = {"linewidth": 1.2, "linestyle": "-" if L > 1 else "--"}
        for i, t in enumerate(several):

            def line(axes, values, color, label, i=i, t=t, style=style):
                label = label if i == 0 else None  # the seeds share a legend entry
                axes.plot(t.steps, values, color=color, label=label, **style)

            line(loss, [m.again for m in t.measured], BLUE if L > 1 else GRAY, _layers(L))
            line(score, [m.previous[0].max() for m in t.measured], ORANGE, f"previous token, {_layers(L)}")
            line(score, [m.induction.max() for m in t.measured], GREEN, f"induction, {_layers(L)}")
            if L > 1:
                line(composition, [K.max() for K in t.K], BLUE, "largest of a pair")
                line(composition, [K.mean() for K in t.K], GRAY, "mean", style={"linewidth": 1})
                bars = [*t.without.ravel(), t.without_previous]
                place = np.arange(len(bars)) + 0.8 * (i / len(several) - 0.5) + 0.4 / len(several)
                ablation.bar(place, bars, 0.8 / len(several), color=[BLUE, ORANGE, GREEN][i % 3], label=f"seed {i}")
    for axes in (loss, ablation):
        axes.axhline(induction.GUESSING, color=GRAY, linestyle=":", label="guessing")
    loss.set(xlabel="step", ylabel="nats", ylim=(0, None), title="Loss on tokens that repeat")
    score.set(xlabel="step", ylim=(0, 1), title="Largest score of a head")
    composition.set(xlabel="step", ylim=(0, None), title="K-composition of layer 0 with layer 1")
    heads = [f"{l},{h}" for l, h in np.ndindex(2, induction.CONFIG.H)]
    ablation.set_xticks(range(len(heads) + 1), [*heads, "all\nprev."])
    ablation.set(xlabel="without head", ylabel="nats", title="Loss on repeats without a head, at the end")
    for axes in (loss, score, composition, ablation):
        axes.legend(fontsize=7, framealpha=0.8)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def draw_circuits(theta: DTransformerParams, path: Path) -> None:
    """Draw layer 0's head of the largest previous-token score, and the induction head that reads most from it."""
    x = jnp.tile(jax.random.permutation(jax.random.key(0), theta.W_e.shape[1])[:PERIOD], 2)
    A = record(d_hidden_state, "A")(x, theta)[1]["A"]
    K = np.asarray(circuits.composition_scores(theta.layers.attention)["K"][0, :, 1])
    earlier = int(scores.previous_token_scores(A)[0].argmax())
    is_induction = np.asarray(scores.induction_scores(A, x)[1] > 0.5)
    later = int(np.where(is_induction, K[earlier], 0).argmax())
    figure = Figure(figsize=(10, 6.6), layout="constrained")
    panels = figure.subplots(2, 3)
    for axes, (l, h), what in zip(panels[0], ((0, earlier), (1, later)), ("previous token", "induction"), strict=False):
        title = f"Head ({l}, {h}): {what}"
        _draw(figure, axes, A[l, h].T, title, "token attended to", "token", signed=False)
    W, W_e = theta.layers.attention, theta.W_e
    OV = circuits.ov_circuits(W)
    # how well what the earlier head wrote about a token (row) fits a query (column); what attending to a token
    # (column) adds to each logit (row)
    fits = (OV[0, earlier] @ W_e).T @ circuits.qk_circuits(W)[1, later] @ W_e
    moved = theta.variant.unembedding.matrix(theta) @ OV[1, later] @ W_e
    _draw(figure, panels[0, 2], K, "K-composition", "head of layer 1", "head of layer 0", signed=False)
    _draw(figure, panels[1, 0], fits, f"QK of (1, {later}) after OV of (0, {earlier})", "query", "token before the key")
    _draw(figure, panels[1, 1], moved, f"OV of (1, {later}), token to logit", "token attended to", "logit of token")
    axes, eigenvalues = panels[1, 2], np.asarray(circuits.copying_eigenvalues(theta))[1]  # those right of 0 copy
    for h, of_head in enumerate(eigenvalues):
        axes.scatter(of_head.real, of_head.imag, s=14, marker="os^D"[h % 4], label=f"(1, {h})", alpha=0.8)
    axes.axvline(0, color=GRAY, linewidth=0.8)
    axes.set_title("Eigenvalues of OV, token to token", fontsize=9)
    axes.set_box_aspect(1)
    axes.set(xlabel="real part", ylabel="imaginary part")
    axes.legend(fontsize=7, ncols=2 if len(eigenvalues) > 4 else 1)
    figure.savefig(path, dpi=100)


def _draw(figure: Figure, axes: Any, values: Any, title: str, across: str, down: str, *, signed: bool = True) -> None:
    values = np.asarray(values)
    most = float(np.abs(values).max())
    options = {"cmap": "RdBu", "vmin": -most, "vmax": most} if signed else {"cmap": "cividis", "vmin": 0, "vmax": most}
    image = axes.imshow(values, interpolation="nearest", **options)
    axes.set_title(title, fontsize=9)
    axes.set(xlabel=across, ylabel=down)
    figure.colorbar(image, ax=axes, shrink=0.8)


def form(arguments: Any) -> None:
    """Train the models, print their measurements, and draw them."""
    models: dict[int, list[Trained]] = {2: [], 1: []}
    total = len(models) * arguments.seeds * arguments.steps
    with Bar("training", unit="steps") as bar:
        for seed in range(arguments.seeds):
            for L, several in models.items():
                several.append(train(L, seed, arguments.steps, lambda n: bar.advance(n, total)))
                with tqdm.external_write_mode(sys.stdout):
                    report(L, seed, several[-1])
    draw(models, arguments.out)
    of_circuits = arguments.out.with_stem(f"{arguments.out.stem}-circuits")
    draw_circuits(models[2][0].theta, of_circuits)
    print(f"The picture is in {arguments.out}, the circuits of seed 0 in {of_circuits}.")


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


def _draw_scores(found: Measured, path: Path) -> None:
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
    if arguments.run is None:
        form(arguments)
        return
    run = load_run(arguments.run, lines=arguments.lines)
    if run.task != "d":
        raise UsageError(f"RUN: expected a decoder's run (task d), got one of task {run.task}")
    find(run, arguments.out)
