"""Pictures of the losses in metrics.jsonl."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def plot_losses(lines: list[dict[str, Any]], path: Path, *, title: str) -> None:
    """Plot the loss over the steps: of training faintly, with its mean over neighboring steps on top, and validation as
    points.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    steps, losses = _points(lines, "loss")
    if steps:
        axes.plot(steps, losses, color="C0", alpha=0.25, linewidth=0.8)
        axes.plot(steps, smoothed(losses), color="C0", linewidth=1.5, label="training, smoothed")
    if any("validation_loss" in line for line in lines):
        axes.plot(*_points(lines, "validation_loss"), "o", color="C1", markersize=4, label="validation")
    if axes.lines:
        axes.legend()
    axes.set(xlabel="step", ylabel="nats per predicted token", title=title)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def compare_losses(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot the losses of several runs by name, over the steps and over the seconds of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    by_step, by_second = figure.subplots(1, 2, sharey=True)
    for n, (name, lines) in enumerate(runs.items()):
        steps, losses = _points(lines, "loss")
        seconds = [line["seconds"] for line in lines if "loss" in line]
        for axes, at in ((by_step, steps), (by_second, seconds)):
            axes.plot(at, losses, color=f"C{n}", alpha=0.2, linewidth=0.8)
            axes.plot(at, smoothed(losses), color=f"C{n}", linewidth=1.5, label=name)
    by_step.set(xlabel="step", ylabel="nats per predicted token")
    by_second.set(xlabel="seconds")
    for axes in (by_step, by_second):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def smoothed(losses: Sequence[float]) -> np.ndarray:
    """Return the mean of each loss and its neighbors on both sides, a fiftieth of all of them, fewer at the ends.

    Example:
        >>> smoothed([1.0, 2.0, 3.0]).tolist()
        [1.0, 2.0, 3.0]
    """
    reach = len(losses) // 100
    return np.array([np.mean(losses[max(i - reach, 0) : i + reach + 1]) for i in range(len(losses))])


def _points(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    found = [line for line in lines if name in line]
    return [line["step"] for line in found], [float(line[name]) for line in found]
