"""Where the settings of a run come from."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from training.mesh.padding import padded_size
from training.mesh.shape import check_sizes as check_mesh
from training.runs.directory import RunError
from training.settings import MANY, Settings, SettingsError
from training.tasks import settings_from, settings_to_json
from training.tasks.models import check_sizes


class Model(NamedTuple):
    """The model that a training starts from."""

    name: str  # what `start_from` becomes
    sizes: Mapping[str, Any]  # settings that the model decides; of its l_max, the training may use less


class Given(NamedTuple):
    """What decides the settings of a run; those by name are as in JSON."""

    task: str
    began: Settings | None  # those that the run began with, if it is resumed
    preset: Mapping[str, Any]
    file: Mapping[str, Any]  # of --config
    flags: Mapping[str, Any]
    epochs: float | None = None  # in place of steps
    model: Model | None = None  # None: none, or not read yet
    n_examples: int | None = None  # in an epoch; None: the data are not read yet
    N_V: int | None = None  # of the model; None: not known yet
    lines: Sequence[str] = ()  # packages that lines of one's own may be imported from

    @property
    def chosen(self) -> dict[str, Any]:
        """What the user chose for this call."""
        return {**self.preset, **self.file, **self.flags}

    def fixed(self, settings: Settings, *names: str) -> "Given":
        """Return what is given, with these settings as they have become."""
        values = settings_to_json(settings)
        return self._replace(flags={**self.flags, **{name: values[name] for name in names}})


def resolve(given: Given) -> Settings:
    """Return the settings of a run: a function of what is given, and of nothing else. By precedence:

    1. the sizes of the model that the training starts from,
    2. --epochs, for the steps,
    3. flags, then --config, then --preset,
    4. the settings that the run began with,
    5. defaults that depend on the settings above: on the optimizer, the schedule, --from and --lora-rank,
    6. the task's defaults, then the common ones.

    Raises SettingsError, RunError for a run of another task, MeshError, or ValueError if sizes do not fit together.
    """
    if given.began and given.began.task != given.task:
        raise RunError(f"--run: expected a run of task {given.task}, got one of {given.began.task}; name another one")
    values = {**(settings_to_json(given.began) if given.began else {}), **given.chosen}
    settings = settings_from(values | _steps(given, values), task=given.task)
    if given.model:
        settings = _of_model(settings, given.model, given.chosen)
    else:
        check_sizes(settings, given.lines)
    if given.N_V is not None:
        check_mesh(settings, padded_size(given.N_V, settings.vocabulary_multiple))
    elif not settings.start_from:  # whose sizes are not read yet
        check_mesh(settings)
    return settings


def _steps(given: Given, values: Mapping[str, Any]) -> dict[str, int]:
    """The number of steps for --epochs; as many as there can be while the data are not read."""
    if given.epochs is None:
        return {}
    if "steps" in given.flags:
        raise SettingsError("--epochs: expected no --steps beside it, got both; leave one out")
    if not 0 < given.epochs < MANY:
        raise SettingsError(f"--epochs: expected a number above 0, got {given.epochs}")
    if given.n_examples is None:
        return {"steps": MANY - 1}
    batch_size = settings_from({**values, "steps": MANY - 1}, task=given.task).batch_size
    return {"steps": max(1, math.ceil(given.epochs * given.n_examples / batch_size))}


def _of_model(settings: Settings, model: Model, chosen: Mapping[str, Any]) -> Settings:
    """The settings with the sizes of the model to start from, which those that the user chose cannot replace."""
    if settings.l_max > model.sizes["l_max"]:
        raise SettingsError(f"l_max is {settings.l_max}, but {model.name} reads at most {model.sizes['l_max']} tokens")
    sizes = {**model.sizes, "l_max": settings.l_max}
    asked = {name: getattr(settings, name) for name in sorted(chosen.keys() & sizes.keys())}
    changed = [f"{name} {sizes[name]} instead of {size}" for name, size in asked.items() if size != sizes[name]]
    if changed:
        raise SettingsError(f"{model.name} has other sizes ({'; '.join(changed)}): leave them out")
    return dataclasses.replace(settings, **sizes, start_from=model.name)
