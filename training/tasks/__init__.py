"""The tasks, one record each. A new one needs a record as in `paper`, an entry in `TASKS`, and a line in the tables

* `training.data.loading.EXAMPLES`: its examples,
* `training.generation.text.ANSWERERS`: how a trained run answers a text,
* `training.evaluation.report.EVALUATIONS`: its figures and its baselines.
"""

from collections.abc import Mapping
from typing import Any

from training.settings import Settings, SettingsError, converted, dependent_defaults
from training.tasks.classify import CLASSIFY
from training.tasks.gato import GATO
from training.tasks.paper import ED, D, E
from training.tasks.task import Task

__all__ = ["TASKS", "Task", "settings_from", "settings_to_json"]

TASKS: dict[str, Task] = {task.name: task for task in (D, E, ED, CLASSIFY, GATO)}


def settings_from(values: Mapping[str, Any], *, task: str) -> Settings:
    """Return settings with these values, and the task's defaults for the rest, or raise SettingsError."""
    if task not in TASKS:
        raise SettingsError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
    known = TASKS[task].all_settings()
    for name in values:
        if name not in known:
            shown = name if name.isidentifier() else repr(name)
            raise SettingsError(f"{shown}: expected a setting of {task}, got an unknown one; it has {', '.join(known)}")
    given = {name: converted(name, value) for name, value in values.items()}
    defaults = {name: TASKS[task].default(name) for name in known}
    return Settings(task=task, **(defaults | dependent_defaults(given, defaults) | given))


def settings_to_json(settings: Settings) -> dict[str, Any]:
    """Return the settings of the task by name, as `settings_from` reads them."""
    values = {name: getattr(settings, name) for name in TASKS[settings.task].all_settings()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
