"""Pictures of the losses in metrics.jsonl."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

POINTS = 2000  # most of a curve, more than a picture has columns


class Curve:
    """The points of a curve, in order; when they are more than `POINTS`, each two neighbors become their mean."""

    def __init__(self) -> None:
        self._sums: list[np.ndarray] = []  # of step and value, and how many they are
        self._each = 1  # points that make one

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, step: int, value: float) -> None:
        """Add a point."""
        if self._sums and self._sums[-1][2] < self._each:
            self._sums[-1] = self._sums[-1] + (step, value, 1)
            return
        self._sums.append(np.array([step, value, 1.0]))
        if len(self._sums) > POINTS:
            pairs = zip(self._sums[::2], [*self._sums[1::2], np.zeros(3)], strict=False)
            self._sums, self._each = [a + b for a, b in pairs], 2 * self._each

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps and the values."""
        sums = np.array(self._sums).reshape(-1, 3)
        return sums[:, 0] / sums[:, 2], sums[:, 1] / sums[:, 2]


class Losses:
    """The losses of a training, which take the same time to draw however many they are."""

    def __init__(self, lines: Iterable[dict[str, Any]] = ()) -> None:
        self._training, self._validation = Curve(), Curve()
        for line in lines:
            self.add(line)

    def add(self, line: dict[str, Any]) -> None:
        """Add a line of the metrics."""
        for curve, name in ((self._training, "loss"), (self._validation, "validation_loss")):
            if name in line:
                curve.add(line["step"], float(line[name]))

    def plot(self, path: Path, *, title: str) -> None:
        """Plot the loss over the steps: of training faintly, with its mean over neighboring steps on top, and
        validation as points.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        if self._training:
            steps, losses = self._training.points()
            axes.plot(steps, losses, color="C0", alpha=0.25, linewidth=0.8)
            axes.plot(steps, smoothed(losses), color="C0", linewidth=1.5, label="training, smoothed")
        if self._validation:
            axes.plot(*self._validation.points(), "o", color="C1", markersize=4, label="validation")
        if axes.lines:
            axes.legend()
        axes.set(xlabel="step", ylabel="nats per predicted token", title=title)
        axes.grid(alpha=0.3)
        figure.savefig(path, dpi=120)


def smoothed(losses: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the mean of each loss and its neighbors on both sides, a fiftieth of all of them, fewer at the ends.

    Example:
        >>> smoothed([1.0, 2.0, 3.0]).tolist()
        [1.0, 2.0, 3.0]
    """
    reach, sums = len(losses) // 100, np.cumsum([0.0, *losses])
    at = np.arange(len(losses))
    begin, end = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(losses))
    return (sums[end] - sums[begin]) / (end - begin)
