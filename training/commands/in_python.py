"""`training.train`: what the command line does, from Python, as in a notebook."""

import argparse
import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from training.command_line.arguments import did_you_mean
from training.command_line.resolving import resolve, run_request
from training.commands.train import train as train_by
from training.mesh.cpu import as_devices
from training.mesh.processes import Processes
from training.mesh.shape import n_places
from training.presets import PRESETS
from training.runs.directory import Run
from training.runs.interrupts import Interrupted, Interrupts
from training.runs.trained_model import load_run
from training.settings import KINDS, SETTINGS, SettingsError


def train(
    task: str,
    run: str | Path,
    *,
    epochs: float | None = None,
    preset: str | None = None,
    cache: Path | None = None,
    lines: Sequence[str] = (),
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train a model as the command ``train.py`` does, or resume the run in a directory, and return it. Progress (unless
    `quiet`), samples and results are printed as by the command. Ctrl-C, or the notebook's stop button, saves a
    checkpoint and raises KeyboardInterrupt; the same call then resumes. JAX's compilation cache stays as it is.
    `lines` are packages that are not installed, from which a run may import its custom lines. The settings are as
    the flags, with underscores: ``steps=500, batch_size=8``; `--from` is ``start_from``. Raises ValueError, as one
    sentence.
    """
    for name in settings:
        if name not in SETTINGS:
            raise SettingsError(f"{name}: expected a setting, got an unknown one{did_you_mean(name, SETTINGS)}")
    if preset is not None and PRESETS.get(preset, ("",))[0] != task:
        known = ", ".join(name for name, (of, _) in PRESETS.items() if of == task) or "none"
        raise SettingsError(f"preset: expected one of {task} ({known}), got {preset!r}")
    given = {name: _plain(name, value) for name, value in settings.items()}
    own = {"task": task, "run": str(run), "config": None, "preset": preset, "epochs": epochs, "dry_run": False}
    arguments = argparse.Namespace(**own, cache=cache, lines=lines, quiet=quiet, **given)
    interrupts = _Interrupts()
    in_main_thread = threading.current_thread() is threading.main_thread()  # which alone gets signals
    with interrupts if in_main_thread else contextlib.nullcontext():
        try:
            found = run_request(arguments)
            resolved = resolve(found)
            as_devices(n_places(resolved.mesh))
            train_by(arguments, found, resolved, interrupts, Processes())
        except Interrupted:
            raise KeyboardInterrupt(f"the training of {run} was interrupted; call train again to resume it") from None
    return load_run(run, lines=lines)


def _plain(name: str, value: Any) -> Any:
    """Return a setting as JSON has it: numbers of Python, texts for paths, and a list also of a single name."""
    if isinstance(value, np.generic):
        return value.item()
    if KINDS[name] == tuple[str, ...]:
        names = [value] if isinstance(value, str | Path) else value
        return [os.fspath(each) if isinstance(each, Path) else each for each in names]
    return os.fspath(value) if isinstance(value, Path) else value


class _Interrupts(Interrupts):
    """Like `Interrupts`, but the second Ctrl-C raises KeyboardInterrupt, since the process is not ours to end."""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.status:
            raise KeyboardInterrupt
        self.status = 128 + number
