"""The training loop's state other than arrays, and its rates."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Progress:
    """The progress of a training; saved with the arrays."""

    step: int = 0  # updates done
    pending: dict[str, Any] | None = None  # metrics of an update that is yet to be evaluated
    best_loss: float = math.inf  # of the evaluations so far
    best_step: int = 0  # step of the best loss
    worse: int = 0  # evaluations since the best loss
    stopped: bool = False  # whether the training stopped early
    results: dict[str, float] = dataclasses.field(default_factory=dict)  # of the last evaluation
    seconds: float = 0.0  # duration of the updates, without evaluations and checkpoints

    def note(self, results: dict[str, float], patience: int) -> bool:
        """Record an evaluation, and return whether it is the best so far; `patience` worse ones stop (0: never)."""
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
        """Return the progress that `to_json` described."""
        return cls(**{**state, "best_loss": float(state["best_loss"])})


class Rates:
    """Tokens per second and the model FLOP/s utilization (MFU), over the updates since they were last read."""

    def __init__(self, clock: Callable[[], float], *, flops: float, peak: float) -> None:
        """Start measuring; `flops` are those of an update, `peak` the machine's FLOP/s."""
        self._clock, self._flops, self._peak = clock, flops, peak
        self._last = clock()
        self._seconds = self._tokens = self._updates = 0.0

    def add(self, tokens: float) -> None:
        """Count an update and its predicted tokens."""
        now = self._clock()
        self._seconds += now - self._last
        self._last = now
        self._tokens += tokens
        self._updates += 1

    def skip(self) -> None:
        """Exclude the time since the last update."""
        self._last = self._clock()

    def read(self) -> tuple[dict[str, float], float]:
        """Return the rates and the seconds they were measured over, and start anew."""
        seconds = max(self._seconds, 1e-9)
        rates = {"tokens_per_second": self._tokens / seconds, "mfu": self._updates * self._flops / seconds / self._peak}
        self._seconds = self._tokens = self._updates = 0.0
        return rates, seconds
