"""Files that a training writes: checkpoints with its progress and best parameters, metrics, the results."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from training.disk import reason
from training.loop.diagnosis import TrainingError
from training.loop.program import Plan, evaluated
from training.loop.train_step import TrainState
from training.mesh.placement import shardings
from training.runs.checkpoints import Checkpoints
from training.runs.directory import RunDirectory
from training.runs.event_files import EventFile
from training.runs.loss_plots import Losses
from training.runs.metrics import MetricsLog, Writer, cut, iter_metrics
from training.settings import Settings


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


class Store(contextlib.ExitStack):
    """The files of a training, opened; of several processes, only the main one writes what is not a checkpoint."""

    def __init__(
        self,
        plan: Plan,
        files: RunDirectory,
        *,
        is_main: bool,
        warn: Callable[[str], None],
        writers: Sequence[Writer] = (),
    ) -> None:
        """Open the checkpoints; `warn` receives messages about damaged ones, and `writers` also get the metrics."""
        super().__init__()
        settings, self._files, self._is_main, self._warn, self._writers = plan.settings, files, is_main, warn, writers
        self._checkpoints = self.enter_context(Checkpoints(files.checkpoints, max_to_keep=settings.max_to_keep))
        self._placement, self._keeps_best = plan.placement, settings.patience > 0
        self._best: Any = None  # the best parameters so far, in NumPy, if the training may stop early
        self._log: MetricsLog | None = None
        self._trace = self.enter_context(contextlib.ExitStack())

    def restore(self, plan: Plan) -> tuple[TrainState, Progress]:
        """Return the state and progress of the last good checkpoint, or the first ones. Raises CheckpointError."""
        items, self._best = _items(plan.template), None
        if self._keeps_best:
            items["best"] = jax.tree.map(lambda of: jax.ShapeDtypeStruct(of.shape, of.dtype), evaluated(plan.template))
        try:
            restored = self._checkpoints.restore_latest(items, self._warn)
        except OSError as error:
            raise TrainingError(
                f"cannot read the last checkpoint in {self._files.checkpoints}: {reason(error)}; nothing was changed: "
                "rerun the command to try again"
            ) from error
        if restored is None:
            self._open_log(plan.settings, 0, 0)
            return plan.first_state(), Progress()
        trees, progress = restored.trees, Progress.from_json(restored.meta["progress"])
        self._open_log(plan.settings, progress.step, restored.meta["metrics_bytes"])
        (opt_state, healthy), self._best = trees["state"], trees.get("best")
        state = TrainState(trees["params"], opt_state, healthy, trees.get("ema"), trees.get("loss_scale"))
        return state, progress

    def _open_log(self, settings: Settings, step: int, size: int) -> None:
        """Continue the metrics after `step`, when the file had this size."""
        if not self._is_main:
            return
        if not cut(self._files.metrics, size):
            self._warn(f"{self._files.metrics} is shorter than at the checkpoint: some metrics are lost")
        self._losses = Losses(iter_metrics(self._files.metrics))
        if self._log is not None:
            return
        events: list[Writer] = [EventFile(self._files.tensorboard, step)] if settings.tensorboard else []
        self._log = self.enter_context(contextlib.closing(MetricsLog(self._files.metrics, [*events, *self._writers])))

    def append(self, line: dict[str, Any]) -> None:
        """Write a line of the metrics."""
        if self._log is not None:
            self._log.append(line)
            self._losses.add(line)

    def note(self, plan: Plan) -> None:
        """Record the settings of a plan."""
        self._files.note(plan.description)

    def save(self, state: TrainState, progress: Progress) -> None:
        """Write a checkpoint in the background, or raise CheckpointError if it cannot be written."""
        meta = {"progress": progress.to_json(), "metrics_bytes": 0 if self._log is None else self._log.size()}
        if self._keeps_best and self._best is None:  # not evaluated yet
            self.keep_best(state)
        best = {} if self._best is None else {"best": self._best}
        self._checkpoints.save(progress.step, _items(state) | best, meta)

    def keep_best(self, state: TrainState) -> None:
        """Keep the evaluated parameters, the best so far, if the training may stop early."""
        if self._keeps_best:
            self._best = jax.tree.map(np.array, self._placement.gathered(evaluated(state)))

    def best(self, state: TrainState) -> TrainState | None:
        """Return the state with the best parameters; None if they are not kept."""
        if self._best is None:
            return None
        return state._replace(params=jax.device_put(self._best, shardings(state.params)), ema=None)

    def last_step(self) -> int | None:
        """Return the step of the last complete checkpoint; None if there is none."""
        self._checkpoints.wait()
        return next(iter(self._checkpoints.steps()), None)

    def trace(self, *, begins: bool) -> None:
        """Begin a profiler's trace, or end and write it, which the end of the training does, too."""
        if self._is_main:
            self._trace.close()
            if begins:
                self._trace.enter_context(jax.profiler.trace(str(self._files.profile)))

    def draw(self) -> None:
        """Plot the metrics."""
        if self._is_main:
            self._losses.plot(self._files.picture, title=self._files.path.name)

    def finish(self, trained: Any, results: dict[str, Any], step: int, *, is_adapter: bool) -> None:
        """Write the parameters trained until `step` and the results, after the last checkpoint is complete."""
        self._checkpoints.wait()
        if self._is_main:
            self._files.save_parameters(trained, self._files.adapter if is_adapter else None, step=step)
            self._files.save_results(results)


def _items(state: TrainState) -> dict[str, Any]:
    """The items of a checkpoint; the parameters can be read without the rest."""
    items: dict[str, Any] = {"params": state.params, "state": (state.opt_state, state.healthy)}
    optional = {"ema": state.ema, "loss_scale": state.loss_scale}
    return items | {name: tree for name, tree in optional.items() if tree is not None}
