"""Settings that may change when a run is resumed."""

import dataclasses
from typing import Any

from training.settings import SETTINGS, Settings, decay_steps, flag

FILES = ("data", "validation_data", "pairs", "labeled")  # the settings that name files


def differences(old: Settings, new: Settings, *, done: int = 0) -> list[str]:
    """Return the changes, as "--flag: old, now new", that keep a run with `done` updates from resuming; the number of
    steps may change if the updates so far do not depend on it. What only follows from another change is left out.
    """
    if old.task != new.task:
        return [f"task: {old.task}, now {new.task}"]
    changed = [name for name in SETTINGS if getattr(old, name) != getattr(new, name)]
    refused = [name for name in changed if not _may_change(name, old, new, done)]
    return [
        f"{flag(name)}: {_shown(getattr(old, name))}, now {_shown(getattr(new, name))}"
        for name in refused
        if not set(SETTINGS[name].depends) & set(refused)
    ]


def moved(old: Settings, new: Settings) -> Settings:
    """Return the new settings with the old names of files, which may have moved."""
    return dataclasses.replace(new, **{name: getattr(old, name) for name in FILES})


def _shown(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else "none" if value == "" else str(value)


def _may_change(name: str, old: Settings, new: Settings, done: int) -> bool:
    if name == "steps":  # has not affected the rates of these schedules so far
        falls = min(steps - decay_steps(steps) for steps in (old.steps, new.steps))
        is_same = old.schedule in ("constant", "vaswani") or (old.schedule == "wsd" and done <= falls)
        return done <= new.steps and is_same
    if name == "dtype":  # train.py never stores auto
        return old.dtype == "auto"
    if name in ("eval_every", "eval_batches") and old.patience:  # which decide when the training stops
        return False
    return SETTINGS[name].continues
