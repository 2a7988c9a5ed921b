"""Pictures of a run."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def plot_losses(lines: list[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draws the training and the validation loss over the steps.

    Args:
        lines: of metrics.jsonl.
        path: of the picture, .png.
        title: above it.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, label, style in (("loss", "training", "-"), ("validation_loss", "validation", "o-")):
        points = [(line["step"], float(line[name])) for line in lines if name in line]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1, markersize=3)
            axes.legend()
    axes.set(xlabel="step", ylabel="nats per predicted token", title=title)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
