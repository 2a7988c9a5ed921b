"""Settings of a run: what a command line gives, and what follows from that."""

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training.data.corpora import SOURCES
from training.data.hub_names import as_begun
from training.data.mixtures import weighted
from training.data.streams import at_commit
from training.disk import parse_json, read_text, reason
from training.interchange.starting import Start
from training.mesh.padding import padded_size
from training.mesh.shape import check_sizes as check_mesh
from training.presets import PRESETS
from training.runs.directory import RunDirectory, RunError
from training.runs.resuming import FILES
from training.settings import MANY, SETTINGS, Settings, SettingsError, converted
from training.tasks import TASKS, settings_from
from training.tasks.models import check_sizes
from training.tasks.own_lines import modules_of


class RunRequest(NamedTuple):
    """The settings that a command line asks for and what else decides those of a run; by name, as in JSON."""

    task: str
    files: RunDirectory  # of the run, with the packages that custom lines may be imported from
    began: Settings | None  # those that the run began with, if it is resumed
    chosen: Mapping[str, Any]  # by flags, else --config, else --preset
    epochs: float | None = None  # in place of steps
    start: Start | None = None  # the model that the training starts from; None: none, or not read yet
    n_examples: int | None = None  # in an epoch; None: the data are not read yet
    N_V: int | None = None  # of the model; None: not known yet


def resolve(given: RunRequest) -> Settings:
    """Return the settings of a run: a function of what is given, and of nothing else. By precedence:

    1. the sizes of the model that the training starts from,
    2. --epochs, for the steps,
    3. what the user chose: flags, then --config, then --preset,
    4. the settings that the run began with,
    5. defaults that depend on the settings above: on the optimizer, the schedule, --from and --lora-rank,
    6. the task's defaults, then the common ones.

    Raises SettingsError, RunError for a run of another task, MeshError, or ValueError if sizes do not fit together.
    """
    if given.began and given.began.task != given.task:
        raise RunError(f"--run: expected a run of task {given.task}, got one of {given.began.task}; name another one")
    before = {name: getattr(given.began, name) for name in TASKS[given.task].all_settings()} if given.began else {}
    values = {**before, **given.chosen}
    settings = settings_from(values | _steps(given, values), task=given.task)
    if given.start:
        settings = _with_sizes(settings, given.start, given.chosen)
    else:
        check_sizes(settings, given.files.lines)
    if given.N_V is not None:
        check_mesh(settings, padded_size(given.N_V, settings.vocabulary_multiple))
    elif not settings.start_from:  # whose sizes are not read yet
        check_mesh(settings)
    return settings


def _steps(given: RunRequest, values: Mapping[str, Any]) -> dict[str, int]:
    """The number of steps for --epochs; as many as there can be while the data are not read."""
    if given.epochs is None:
        return {}
    if not 0 < given.epochs < MANY:
        raise SettingsError(f"--epochs: expected a number above 0, got {given.epochs}")
    if given.n_examples is None:
        return {"steps": MANY - 1}
    batch_size = settings_from({**values, "steps": MANY - 1}, task=given.task).batch_size
    return {"steps": max(1, math.ceil(given.epochs * given.n_examples / batch_size))}


def _with_sizes(settings: Settings, model: Start, chosen: Mapping[str, Any]) -> Settings:
    """The settings with the sizes of the model to start from; the user can only choose a smaller l_max."""
    if settings.l_max > model.sizes["l_max"]:
        raise SettingsError(f"l_max is {settings.l_max}, but {model.name} reads at most {model.sizes['l_max']} tokens")
    sizes = {**model.sizes, "l_max": settings.l_max}
    asked = {name: getattr(settings, name) for name in sorted(chosen.keys() & sizes.keys())}
    changed = [f"{name} {sizes[name]} instead of {size}" for name, size in asked.items() if size != sizes[name]]
    if changed:
        raise SettingsError(f"{model.name} has other sizes ({'; '.join(changed)}): leave them out")
    return dataclasses.replace(settings, **sizes, start_from=model.name)


def with_task(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the task of the run in ``--run DIR`` if none comes first. Raises RunError."""
    if not argv or not argv[0].startswith("--") or argv[0] == "--help":
        return list(argv)
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--run")
    run = finder.parse_known_args(argv)[0].run
    if run is None:
        return list(argv)
    files = RunDirectory(run)
    if not files.config.is_file():
        raise RunError(
            f"--run: expected a run to resume, got {run}; to begin one, put the task first: {', '.join(TASKS)}"
        )
    return [files.settings().task, *argv]


def run_request(arguments: argparse.Namespace) -> RunRequest:
    """Return what a command line gives. Raises SettingsError or RunError if a file cannot be read."""
    preset = PRESETS[arguments.preset][1] if getattr(arguments, "preset", None) else {}
    file = _settings_file(arguments.config) if arguments.config else {}
    flags = {name: value for name, value in vars(arguments).items() if name in SETTINGS}
    if arguments.epochs is not None and "steps" in flags:
        raise SettingsError("--steps and --epochs exclude each other")
    typed = modules_of(converted("variant", flags["variant"])) if "variant" in flags else ()
    files = RunDirectory(arguments.run, lines=(*arguments.lines, *typed))
    began = files.description().settings if files.config.is_file() else None
    chosen = {**preset, **file, **flags}
    chosen = _absolute(chosen, adapts=bool(chosen.get("lora_rank", began and began.lora_rank)))
    if began:
        chosen = _as_begun(chosen, began)
    return RunRequest(arguments.task, files, began, chosen, arguments.epochs)


def _settings_file(path: Path) -> dict[str, Any]:
    try:
        values = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise SettingsError(f"cannot read the settings {path}: {why}") from None
    if isinstance(values, dict) and "settings" in values:
        values = values["settings"]
    if not isinstance(values, dict):
        raise SettingsError(f"--config: expected a JSON object of settings in {path}, got {type(values).__name__}")
    return values


def _absolute(values: dict[str, Any], *, adapts: bool) -> dict[str, Any]:
    """Make the paths of files absolute, so that the run works from every directory."""

    def absolute(name: Any) -> Any:
        if not isinstance(name, str):
            return name
        path, weight = weighted(name)
        if not Path(path).exists() or (path in SOURCES and Path(path).is_dir()):
            return name
        return f"{Path(path).absolute()}{'' if weight is None else name.removeprefix(path)}"

    files = {name: values[name] for name in FILES if isinstance(values.get(name), list | tuple)}
    if adapts and values.get("start_from"):  # read again whenever the run is loaded
        values = values | {"start_from": absolute(values["start_from"])}
    return values | {name: [*map(absolute, paths)] for name, paths in files.items()}


def _as_begun(values: dict[str, Any], began: Settings) -> dict[str, Any]:
    """Return settings with the dtype and the hub's commits that the run began with, if they may be meant."""
    changed: dict[str, Any] = {"dtype": began.dtype} if values.get("dtype") == "auto" else {}
    for name in {"start_from", *FILES} & values.keys():
        now, before = values[name], getattr(began, name)
        if isinstance(now, str):
            changed[name] = as_begun(now, before)
        elif isinstance(now, list | tuple) and len(now) == len(before):
            changed[name] = [as_begun(*pair) for pair in zip(map(str, now), before, strict=True)]
    return values | changed


def at_commits(given: RunRequest) -> RunRequest:
    """Return what is given with each data set of the hub at its commit."""
    named = {name: [*map(at_commit, given.chosen[name])] for name in FILES if name in given.chosen}
    return given._replace(chosen={**given.chosen, **named})
