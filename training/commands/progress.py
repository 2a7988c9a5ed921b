"""How a training goes, for the person who waits: a bar on a terminal, and dated lines everywhere else."""

import datetime
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from training.commands.terminal import say
from training.evaluation.report import sample
from training.loop.trainer import Facts
from training.runs.directory import Run
from training.settings import Settings

LARGE = 64 << 20  # bytes between two lines on what is tokenized
LINES = 20  # of a whole training, where there is no terminal


class Display:
    """Shows steps, loss, tokens per second and the time left; at every evaluation, its loss and a sample."""

    def __init__(self, settings: Settings, path: Path, *, quiet: bool) -> None:
        """Show the progress of a run.

        Args:
            settings: of the run.
            path: of the run.
            quiet: show nothing but warnings.
        """
        self._steps, self._path, self._quiet = settings.steps, path, quiet
        self._bar: tqdm | None = None
        self._validation = ""
        self._every = max(1, settings.steps // LINES)

    def began(self, facts: Facts) -> None:
        """Say what is about to happen."""
        if facts.step:
            say(f"resuming after step {facts.step}")
        if self._quiet:
            return
        say(
            f"{facts.parameters:,} parameters, {facts.tokens:,} tokens of training data, {self._steps} steps "
            f"({facts.epochs:.1f} epochs) on {facts.device}: about {_span(facts.seconds)}"
        )
        if sys.stderr.isatty():
            self._bar = tqdm(total=self._steps, initial=facts.step, unit="step", dynamic_ncols=True)

    def updated(self, step: int, line: dict[str, Any]) -> None:
        """Move the bar, or print a line now and then."""
        if self._quiet:
            return
        rate = f", {line['tokens_per_second']:.0f} tokens/s" if "tokens_per_second" in line else ""
        text = f"loss {line['loss']:.3f}{rate}{self._validation}"
        if self._bar is not None:
            self._bar.set_description_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
        elif step == 1 or step % self._every == 0 or step == self._steps:
            now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
            say(f"{now} step {step}/{self._steps}, {text}")

    def evaluated(self, step: int, results: dict[str, float], run: Run | None) -> None:
        """Show the validation loss, and what the model makes up by now."""
        self._validation = f", validation {results['loss']:.3f}"
        if self._quiet or step == self._steps:
            return
        text = sample(run) if run else ""
        with tqdm.external_write_mode(sys.stderr):
            say(f"step {step}{self._validation}" + (f"; {text}" if text else ""))

    def warned(self, message: str) -> None:
        """Say what is not as it should be."""
        say(f"warning: {message}")

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


class Reading:
    """Shows how much of the data is tokenized: a bar on a terminal, and a line now and then everywhere else."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: tqdm | None = None
        self._done = 0

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def tokenized(self, n_bytes: int, total: int) -> None:
        """So much more is tokenized.

        Args:
            n_bytes: of text.
            total: about how much there is, 0 where that is not known.
        """
        if self._quiet:
            return
        before, self._done = self._done, self._done + n_bytes
        if sys.stderr.isatty():
            shown = {"unit": "B", "unit_scale": True, "desc": "tokenizing", "leave": False}
            self._bar = self._bar or tqdm(total=total or None, delay=1, dynamic_ncols=True, **shown)
            self._bar.update(n_bytes)
        elif before // LARGE < self._done // LARGE:
            say(f"tokenized {self._done >> 20} MiB" + (f" of about {total >> 20}" if total else ""))


class Silence(Display):
    """Of a process that says nothing, since another one does."""

    def __init__(self, settings: Settings, path: Path) -> None:
        super().__init__(settings, path, quiet=True)

    def began(self, facts: Facts) -> None:
        """Say nothing."""

    def warned(self, message: str) -> None:
        """Say nothing."""


def _span(seconds: float) -> str:
    """Return a time as people say it.

    Example:
        >>> _span(7.2), _span(200), _span(9000)
        ('7 seconds', '3 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
