"""How many tokens each expert of each layer gets: the loads of a mixture of experts, and their picture."""

from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from algorithms import DTransformerParams, d_hidden_state
from algorithms.inside import record
from algorithms.lines import Experts
from training.data.batches import Batch
from training.tasks.objectives import in_sequence


def loads(theta: DTransformerParams, batches: Iterable[Batch]) -> Float[np.ndarray, "L N_experts"]:
    """The share of tokens that choose each expert; a layer's add up to k. Raises ValueError without experts."""
    if not isinstance(theta.variant.mlp, Experts):
        raise ValueError(f"theta.variant.mlp: expected Experts, got {theta.variant.mlp!r}")
    routed = record(d_hidden_state, "G")

    @jax.jit
    def counted(theta, batch):
        within = in_sequence()(batch)
        _, seen = routed(batch["x"], theta, segments=batch.get("segment_ids"), positions=batch.get("positions"))
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
