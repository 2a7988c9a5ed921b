"""Attentions and predictions as PNGs; the page has the other sections, too."""

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from training.interpretability.page.look import Look, Prediction

WEIGHTS = ("#ffffff", "#d5e6ea", "#96c2cf", "#4a92b4", "#1c5b95", "#0b2a57")  # of the page in light mode, see color.js
TICKS = (0, 0.05, 0.25, 0.5, 1)  # of weights and probabilities, which are colored by their square root
MOST_TOKENS = 40  # named along an axis
DOTS = 64  # across a head, at most
SIDE, LABEL, WIDEST = 0.75, 0.09, 45  # of a head, of a token's name and of all heads, in inches


def pictures(found: Look) -> dict[str, bytes]:
    """A PNG of each attention, ``"attention"``, ``"attention-1"`` …, and of the ``"prediction"`` if there is one."""
    drawn = {"attention" + f"-{i}" * (i > 0): _attention(found, i) for i in range(len(found.attention))}
    if isinstance(found.prediction, Prediction):
        drawn["prediction"] = _prediction(found, found.prediction)
    return {name: _png(figure) for name, figure in drawn.items()}


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # without pyplot and its global state

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def _map(colors: tuple[str, ...]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("page", colors)


def _png(figure: Any) -> bytes:
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # drawn as a box; the page shows the text
        figure.savefig(data, format="png")
    return data.getvalue()


def _plain(text: str) -> str:
    """Escape what matplotlib would read as math."""
    return text.replace("$", r"\$")


def _attention(found: Look, i: int) -> Any:
    attended = found.attention[i]
    L, H, *lengths = attended.A.shape
    side = max(SIDE, LABEL * max(lengths))
    named = max(lengths) <= MOST_TOKENS and side * max(L, H) <= WIDEST
    side = side if named else SIDE
    figure = _figure(side * H + 1.2 + named, side * L + 1 + named)
    axes = figure.subplots(L, H, squeeze=False)
    for l, h in np.ndindex(L, H):
        ax = axes[l, h]
        image = ax.imshow(np.sqrt(_dots(attended.A[l, h])), cmap=_map(WEIGHTS), vmin=0, vmax=1, interpolation="nearest")
        ax.set(xticks=[], yticks=[])
        if h == 0:
            ax.set_ylabel(l, rotation=0, va="center", ha="right")
        if l == 0:
            ax.set_title(h, fontsize=9)
        if named and h == 0:
            ax.set_yticks(range(lengths[0]), _short(found.texts[attended.of]), fontsize=5)
        if named and l == L - 1:
            ax.set_xticks(range(lengths[1]), _short(found.texts[attended.to]), fontsize=5, rotation=90)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.01)
    bar.set_ticks(np.sqrt(TICKS), labels=list(map(str, TICKS)))
    bar.set_label("attention weight", fontsize=8)
    figure.suptitle(f"{attended.title}: heads by layer (down); a row attends to columns", fontsize=10)
    return figure


def _short(tokens: Sequence[str]) -> list[str]:
    return [_plain(token if len(token) <= 10 else f"{token[:9]}…") for token in tokens]


def _dots(A: np.ndarray) -> np.ndarray:
    """Downsample to at most `DOTS` across, each dot the largest weight that it covers."""
    for axis, n in enumerate(A.shape):
        if n > DOTS:
            A = np.maximum.reduceat(A, np.arange(DOTS) * n // DOTS, axis=axis)
    return A


def _prediction(found: Look, section: Prediction) -> Any:
    tokens = found.texts[section.of]
    rows, l = section.final.shape
    named = l <= MOST_TOKENS
    figure = _figure(max(6, 0.62 * l if named else 12), 0.27 * rows + 1.6)
    ax = figure.subplots()
    p = section.p[:, :, 0]
    image = ax.imshow(np.sqrt(p), cmap=_map(WEIGHTS), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if l <= MOST_TOKENS // 2:
        for row, t in np.ndindex(rows, l):
            color = "white" if p[row, t] > 0.4 else "black"
            word = found.words[int(section.tokens[row, t, 0])]
            ax.text(t, row, *_short([word]), ha="center", va="center", fontsize=6, color=color, family="monospace")
    ax.set_yticks(range(rows), section.rows, fontsize=7)
    if named:
        ax.set_xticks(range(l), [_plain(token) for token in tokens], rotation=60, ha="right", fontsize=8)
    else:
        ax.set_xlabel("token")
    figure.colorbar(image, ax=ax, pad=0.01).set_ticks(np.sqrt(TICKS), labels=list(map(str, TICKS)))
    ax.set_title("Probability of the likeliest token, by layer", fontsize=10)
    return figure
