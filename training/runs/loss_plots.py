"""Pictures of the losses in metrics.jsonl."""

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

POINTS = 2000  # most of a curve, more than a picture has columns


class Losses:
    """The losses of a training."""

    def __init__(self, lines: Iterable[dict[str, Any]] = ()) -> None:
        self._of = {name: (array("q"), array("d")) for name in ("loss", "validation_loss")}  # steps and values
        for line in lines:
            self.add(line)

    def add(self, line: dict[str, Any]) -> None:
        """Add a line of the metrics."""
        for name, (steps, values) in self._of.items():
            if name in line:
                steps.append(line["step"])
                values.append(float(line[name]))

    def curve(self, name: str) -> list[np.ndarray]:
        """Return the steps and the values of a loss; of more than `POINTS`, the means of as many neighbors each."""
        steps, values = self._of[name]
        starts = np.arange(0, len(steps), -(-len(steps) // POINTS) or 1)
        counts = np.diff(starts, append=len(steps))
        return [np.add.reduceat(np.asarray(of), starts) / counts for of in (steps, values)] if len(steps) else []

    def plot(self, path: Path, *, title: str) -> None:
        """Plot the training loss faintly, with its mean over neighbors on top, and the validation loss as points."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        if training := self.curve("loss"):
            steps, losses = training
            axes.plot(steps, losses, color="C0", alpha=0.25, linewidth=0.8)
            axes.plot(steps, smoothed(losses), color="C0", linewidth=1.5, label="training, smoothed")
        if validation := self.curve("validation_loss"):
            axes.plot(*validation, "o", color="C1", markersize=4, label="validation")
        if axes.lines:
            axes.legend()
        axes.set(xlabel="step", ylabel="nats per predicted token", title=title)
        axes.grid(alpha=0.3)
        figure.savefig(path, dpi=120)


def smoothed(losses: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the mean of each loss and its neighbors on both sides, a fiftieth of all of them, fewer at the ends."""
    reach, sums = len(losses) // 100, np.cumsum([0.0, *losses])
    at = np.arange(len(losses))
    begin, end = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(losses))
    return (sums[end] - sums[begin]) / (end - begin)
