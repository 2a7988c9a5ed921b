"""Count the tokens that each expert of a run's layers gets from its held-out data, and draw them.

scripts/load_of_experts.py runs/experts --picture experts.png
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from algorithms import DTransformerParams, d_hidden_state
from algorithms.inside import record
from algorithms.lines import Experts
from training.command_line.arguments import Parser, UsageError, add_cache, add_lines, at_least, local
from training.command_line.named_models import run_of
from training.data.batches import Batch
from training.data.loading import load_run_data
from training.runs.directory import RunDirectory
from training.runs.trained_model import load_run
from training.tasks.objectives import in_sequence


def parser() -> Parser:
    """Return the command line."""
    main = Parser(description=__doc__)
    main.add_argument("run", metavar="RUN", help="directory of the run, of Algorithm 10 with experts")
    main.add_argument("--picture", metavar="FILE", type=local, help="picture to write: .svg, .png or .pdf")
    main.add_argument("--batches", type=at_least(1), default=20, metavar="N", help="how many to read (default: 20)")
    add_cache(main.add_argument)
    add_lines(main.add_argument)
    return main


def loads(theta: DTransformerParams, batches: Iterable[Batch]) -> Float[np.ndarray, "L N_experts"]:
    """The share of tokens that choose each expert; a layer's add up to k. Raises ValueError without experts."""
    if not any(isinstance(line, Experts) for line in theta.variant.mlps):
        raise ValueError(f"theta.variant.mlp: expected Experts, got {theta.variant.mlp!r}")
    routed = record(d_hidden_state, "G")

    @jax.jit
    def counted(theta, batch):
        within = in_sequence()(batch)
        _, seen = routed(batch["x"], theta, segments=batch.get("segment_ids"))
        return jnp.einsum("lnbt,bt->ln", seen["G"] > 0, within), within.sum()

    chosen, tokens = zip(*(jax.device_get(counted(theta, batch)) for batch in batches), strict=True)
    return np.sum(chosen, axis=0) / np.sum(tokens)


def draw_loads(shares: Float[np.ndarray, "L N_experts"], path: Path) -> None:
    """Draw the loads, relative to equal ones, with a row for each layer and a column for each expert."""
    from matplotlib.figure import Figure

    L, n = shares.shape
    relative = shares * n / shares.sum(1, keepdims=True)
    figure = Figure(figsize=(1.5 + 0.55 * n, 1.3 + 0.45 * L), layout="constrained")
    axes = figure.subplots()
    most = max(2.0, float(relative.max()))
    image = axes.imshow(relative, cmap="cividis", vmin=0, vmax=most, interpolation="nearest", aspect="auto")
    for (l, i), value in np.ndenumerate(relative):
        axes.text(i, l, f"{value:.2f}", ha="center", va="center", fontsize=7, color="w" if value < most / 2 else "k")
    axes.set(xlabel="expert", ylabel="layer", xticks=range(n), yticks=range(L))
    figure.colorbar(image, ax=axes, label="tokens, relative to equal loads")
    figure.savefig(path, dpi=100)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    files = RunDirectory(run_of(arguments.run, arguments.cache), lines=arguments.lines)
    run = load_run(files.path, lines=arguments.lines)
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
