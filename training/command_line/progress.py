"""Shows training progress: a bar on a terminal, and dated lines everywhere else."""

import collections
import contextlib
import sys
from typing import Any

import numpy as np
from tqdm import tqdm

from training.command_line.terminal import Bar, say, waiting
from training.evaluation.report import sample
from training.loop.trainer import Facts
from training.runs.directory import Run
from training.settings import Settings
from training.tasks import TASKS

LINES = 20  # per training, without a terminal
MANY_EPOCHS = 100  # from which on the data are so few that a warning says so
WINDOW = 10.0  # minimum seconds to average rates over
EVALUATION = 5.0  # seconds of an evaluation after which its progress is shown
MEASURED = 5.0  # seconds of updates after which the time left is printed
BAR = "{{percentage:3.0f}}%{left} |{{bar:10}}| {{n_fmt}}/{{total_fmt}}, {{desc}}"
"""Most important first: a narrow terminal cuts off the end."""


class Pace:
    """The rate of the last updates alone, over a window, since several results may arrive at once."""

    def __init__(self) -> None:
        self._seen: collections.deque[np.ndarray] = collections.deque()  # step, seconds and tokens after updates

    def add(self, step: int, line: dict[str, Any]) -> None:
        """Record a line of the metrics, if it has the seconds of the updates."""
        if "seconds" not in line:
            return
        _, seconds, tokens = self._seen[-1] if self._seen else (step, line["seconds"], 0.0)
        tokens = tokens + line["tokens_per_second"] * (line["seconds"] - seconds)
        self._seen.append(np.array([step, line["seconds"], tokens]))
        while len(self._seen) > 2 and self._seen[-1][1] - self._seen[1][1] >= WINDOW:
            self._seen.popleft()

    def _window(self) -> np.ndarray:
        return self._seen[-1] - self._seen[0] if self._seen else np.zeros(3)

    @property
    def seconds(self) -> float:
        """The seconds that the rate is measured over."""
        return self._window()[1]

    def tokens_per_second(self) -> float | None:
        """Return the tokens per second, or None if it is too early to tell."""
        _, seconds, tokens = self._window()
        return tokens / seconds if seconds else None

    def left(self, steps: int) -> float | None:
        """Return the seconds until `steps` updates are done, or None if it is too early to tell."""
        done, seconds, _ = self._window()
        return (steps - self._seen[-1][0]) * seconds / done if done else None


class Display:
    """Shows how a training goes, and its evaluations; if `quiet`, only where it resumes, and warnings."""

    def __init__(self, settings: Settings, *, quiet: bool, silent: bool = False) -> None:
        """Show nothing at all if `silent`, as of several processes all but process 0 are."""
        self._steps, self._quiet = settings.steps, quiet or silent
        self._say = (lambda text, **_: None) if silent else say
        self._bar: tqdm | None = None
        self._evaluation: Bar | None = None
        self._validation = ""
        self._evaluating: float | None = None  # seconds of the evaluations, until the time left has been printed
        self._every = max(1, settings.steps // LINES)
        self._unit = "texts" if TASKS[settings.task].records == "labeled" else "tokens"
        self._pace = Pace()

    def began(self, facts: Facts) -> None:
        """Print the sizes of the training."""
        if facts.step:
            self._say(f"resuming after step {facts.step}")
        if self._quiet:
            return
        low_rank = f" and {facts.trained:,} of low rank, which are trained" if facts.trained < facts.parameters else ""
        self._say(
            f"{facts.parameters:,} parameters{low_rank}, {facts.tokens:,} tokens of training data, {self._steps} steps "
            f"({facts.epochs:.1f} epochs) on {facts.device}"
        )
        self._evaluating = facts.evaluating
        if facts.epochs > MANY_EPOCHS:
            self.warned(
                f"the data are read {facts.epochs:,.0f} times, so the model learns them by heart; give more data, or "
                "--patience 3 to stop when the validation loss no longer falls"
            )
        if sys.stderr.isatty():
            self._bar = tqdm(total=self._steps, initial=facts.step, dynamic_ncols=True, bar_format=BAR.format(left=""))

    def updated(self, step: int, line: dict[str, Any]) -> None:
        """Advance the bar, or print a line every so often."""
        if self._quiet:
            return
        self._pace.add(step, line)
        self._announce(step)
        pace, left = self._pace.tokens_per_second(), self._pace.left(self._steps)
        rate = "" if pace is None else f", {pace:,.0f} {self._unit}/s" if pace >= 10 else f", {pace:.2g} {self._unit}/s"
        mtp = f", mtp_loss {line['mtp_loss']:.3f}" if "mtp_loss" in line else ""
        text = f"loss {line['loss']:.3f}{mtp}{rate}{self._validation}"
        if self._bar is not None:
            self._bar.bar_format = BAR.format(left="" if left is None else f" {tqdm.format_interval(left)} left")
            self._bar.set_description_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
        elif step == 1 or step % self._every == 0 or step == self._steps:
            self._say(f"step {step}/{self._steps}, {text}", dated=True)
            self._validation = ""  # said once

    def _announce(self, step: int) -> None:
        """Print the time left, once it has been measured."""
        left = self._pace.left(self._steps)
        if self._evaluating is not None and left is not None and self._pace.seconds >= MEASURED:
            with tqdm.external_write_mode(sys.stderr):
                self._say(f"about {_span(left + self._evaluating)} left on this machine, by the first {step} steps")
            self._evaluating = None

    def evaluated(self, step: int, results: dict[str, float], run: Run | None) -> None:
        """Print the validation loss and a sample of the model."""
        self._end_evaluation()
        self._validation = f", validation {results['loss']:.3f}"
        if self._quiet or step == self._steps:
            return
        text = sample(run) if run else ""
        with tqdm.external_write_mode(sys.stderr):
            self._say(f"step {step}{self._validation}" + (f"; {text}" if text else ""))

    def evaluating(self, total: int) -> None:
        """Advance the evaluation's own bar, or print a line every so often, if it takes long."""
        if not self._quiet:
            self._evaluation = self._evaluation or Bar("evaluating", every=EVALUATION, delay=EVALUATION)
            self._evaluation.advance(1, total)

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            self._evaluation.close()
            self._evaluation = None

    def waiting(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Show what the body does if it takes long."""
        return contextlib.nullcontext() if self._quiet else waiting(what, lines=True)

    def warned(self, message: str) -> None:
        """Print a warning."""
        self._say(f"warning: {message}")

    def close(self) -> None:
        """Close the bars, and leave that of the steps on the screen."""
        self._end_evaluation()
        if self._bar is not None:
            self._bar.close()


def _span(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
