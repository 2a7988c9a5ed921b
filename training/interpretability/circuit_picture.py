"""Draw an induction head and the head that it composes with: attention, circuits, composition."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from matplotlib.figure import Figure

from algorithms import DTransformerParams, d_hidden_state
from algorithms.inside import record
from training.interpretability import circuits, scores

PERIOD = 20  # tokens of the picture's text, which then repeats them


def composed_qk(theta: DTransformerParams, earlier: int, later: int) -> Float[Array, "N_V N_V"]:
    """``(OV' W_e)ᵀ (W_kᵀ W_q) W_e``: how well what the head of layer 0 wrote about a token (row) matches that of a
    query (column).
    """
    W = theta.layers.attention
    written = circuits.ov_circuits(W)[0, earlier] @ theta.W_e
    return written.T @ circuits.qk_circuits(W)[1, later] @ theta.W_e


def token_ov(theta: DTransformerParams, head: int) -> Float[Array, "N_V N_V"]:
    """``W_u W_o W_v W_e`` of a head of layer 1: what attending to a token (column) adds to each logit (row)."""
    return theta.variant.unembedding.matrix(theta) @ circuits.ov_circuits(theta.layers.attention)[1, head] @ theta.W_e


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
    match, moved = composed_qk(theta, earlier, later), token_ov(theta, later)
    _draw(figure, panels[0, 2], K, "K-composition", "head of layer 1", "head of layer 0", signed=False)
    _draw(
        figure, panels[1, 0], match, f"QK of (1, {later}) after OV of (0, {earlier})", "query", "token before the key"
    )
    _draw(figure, panels[1, 1], moved, f"OV of (1, {later}), token to logit", "token attended to", "logit of token")
    _draw_eigenvalues(panels[1, 2], np.asarray(circuits.copying_eigenvalues(theta)))
    figure.savefig(path, dpi=100)


def _draw(figure: Figure, axes: Any, values: Any, title: str, across: str, down: str, *, signed: bool = True) -> None:
    values = np.asarray(values)
    most = float(np.abs(values).max())
    options = {"cmap": "RdBu", "vmin": -most, "vmax": most} if signed else {"cmap": "cividis", "vmin": 0, "vmax": most}
    image = axes.imshow(values, interpolation="nearest", **options)
    axes.set_title(title, fontsize=9)
    axes.set(xlabel=across, ylabel=down)
    figure.colorbar(image, ax=axes, shrink=0.8)


def _draw_eigenvalues(axes: Any, eigenvalues: np.ndarray) -> None:
    """Draw the eigenvalues of each head's circuit from token to token; those right of 0 copy."""
    H = eigenvalues.shape[1]
    for h, of_head in enumerate(eigenvalues[1]):
        axes.scatter(of_head.real, of_head.imag, s=14, marker="os^D"[h % 4], label=f"(1, {h})", alpha=0.8)
    axes.axvline(0, color="#666666", linewidth=0.8)
    axes.set_title("Eigenvalues of OV, token to token", fontsize=9)
    axes.set_box_aspect(1)
    axes.set(xlabel="real part", ylabel="imaginary part")
    axes.legend(fontsize=7, ncols=2 if H > 4 else 1)
