"""The training loop's state besides the arrays, and its measured rates."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Progress:
    """The progress of a training; saved with the arrays."""

    step: int = 0  # updates that are done
    pending: dict[str, Any] | None = None  # the line of an update whose evaluation is still to be done
    best_loss: float = math.inf  # of the evaluations so far
    best_step: int = 0  # where it was
    worse: int = 0  # evaluations since then
    stopped: bool = False  # whether the training stopped early
    results: dict[str, float] = dataclasses.field(default_factory=dict)  # of the last evaluation
    seconds: float = 0.0  # that the updates took, without evaluations and checkpoints

    def note(self, results: dict[str, float], patience: int) -> bool:
        """Take note of an evaluation, and return whether its loss is the best so far; `patience` evaluations
        without a better one stop the training (0: never).
        """
        self.results = results
        if results["loss"] < self.best_loss:
            self.best_loss, self.best_step, self.worse = results["loss"], self.step, 0
            return True
        self.worse += 1
        self.stopped = 0 < patience <= self.worse
        return False

    def to_json(self) -> dict[str, Any]:
        """Return the progress as JSON."""
        return {**dataclasses.asdict(self), "best_loss": str(self.best_loss)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Progress":
        """Return what `to_json` described."""
        return cls(**{**state, "best_loss": float(state["best_loss"])})


class Rates:
    """Tokens per second and the model FLOP/s utilization (MFU), over the updates since they were last read."""

    def __init__(self, clock: Callable[[], float], *, flops: float, peak: float) -> None:
        """Begin to measure; `flops` are those of an update, `peak` those of the machine in a second."""
        self._clock, self._flops, self._peak = clock, flops, peak
        self._last = clock()
        self._seconds = self._tokens = self._updates = 0.0

    def add(self, tokens: float) -> None:
        """An update is done."""
        now = self._clock()
        self._seconds += now - self._last
        self._last = now
        self._tokens += tokens
        self._updates += 1

    def skip(self) -> None:
        """Leave out the time since the last update."""
        self._last = self._clock()

    def read(self) -> tuple[dict[str, float], float]:
        """Return the rates and the seconds that they are over, and start again from zero."""
        seconds = max(self._seconds, 1e-9)
        rates = {"tokens_per_second": self._tokens / seconds, "mfu": self._updates * self._flops / seconds / self._peak}
        self._seconds = self._tokens = self._updates = 0.0
        return rates, seconds
