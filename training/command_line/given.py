"""What a command line of `train.py` gives: its flags, and what is in the files that these name."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.command_line.resolving import Given
from training.data.corpora import SOURCES
from training.data.hub_names import as_begun
from training.data.mixtures import weighted
from training.data.streams import at_commit
from training.disk import parse_json, read_text, reason
from training.presets import PRESETS
from training.runs.directory import RunDirectory, RunError
from training.settings import SETTINGS, Settings, SettingsError, converted
from training.tasks import TASKS
from training.tasks.own_lines import modules_of

FILES = ("data", "validation_data", "pairs", "labeled")  # the settings that name files


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


def given_by(arguments: argparse.Namespace) -> Given:
    """Return what a command line gives. Raises SettingsError or RunError if a file cannot be read."""
    files = RunDirectory(arguments.run)
    began = files.settings() if files.config.is_file() else None
    preset = PRESETS[arguments.preset][1] if getattr(arguments, "preset", None) else {}
    file = _settings_file(arguments.config) if arguments.config else {}
    flags = {name: value for name, value in vars(arguments).items() if name in SETTINGS}
    adapts = {"lora_rank": began.lora_rank if began else 0, **preset, **file, **flags}["lora_rank"]
    preset, file, flags = (_absolute(values, adapts=bool(adapts)) for values in (preset, file, flags))
    if began:
        preset, file, flags = (_as_begun(values, began) for values in (preset, file, flags))
    typed = modules_of(converted("variant", flags["variant"])) if "variant" in flags else ()
    return Given(arguments.task, began, preset, file, flags, arguments.epochs, lines=(*arguments.lines, *typed))


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
    """Return settings with the type of the computation and the commits of the hub that the run began with, for names
    that may mean these.
    """
    changed: dict[str, Any] = {"dtype": began.dtype} if values.get("dtype") == "auto" else {}
    for name in {"start_from", *FILES} & values.keys():
        now, before = values[name], getattr(began, name)
        if isinstance(now, str):
            changed[name] = as_begun(now, before)
        elif isinstance(now, list | tuple) and len(now) == len(before):
            changed[name] = [as_begun(*pair) for pair in zip(map(str, now), before, strict=True)]
    return values | changed


def at_commits(settings: Settings) -> Settings:
    """Return the settings with each data set of the hub at its commit."""
    return dataclasses.replace(settings, **{name: tuple(map(at_commit, getattr(settings, name))) for name in FILES})
