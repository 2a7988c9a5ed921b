"""Train a transformer on next tokens (d), masked tokens (e), sequence to sequence (ed), text classification (classify),
or text, images and control together (gato).

    scripts/train.py d --run runs/docs                                # on Python's documentation
    scripts/train.py d --run runs/mine --data a.txt b.txt --steps 5000
    scripts/train.py ed --run runs/words --data pronunciation --l_max 24
    scripts/train.py classify --run runs/spam
    scripts/train.py --run runs/docs                                  # resumes from the last checkpoint

Exit status: 0 done; 1 training failed; 2 invalid usage or input; 130 or 143 after Ctrl-C or SIGTERM, with a checkpoint
saved.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import re
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from training.commands import called, compilation_cache
from training.commands.arguments import Parser, add_cache, add_model, at_least, local
from training.commands.progress import Display, Reading
from training.commands.resolving import Given, Model, resolve
from training.commands.supervision import enter, is_supervised, note_connection, supervise
from training.commands.terminal import run_of, say, show
from training.data.corpora import SOURCES
from training.data.hub_names import as_begun
from training.data.loading import RunData, load_run_data
from training.data.mixtures import weighted
from training.data.streams import at_commit
from training.data.tokenizers import load_tokenizer
from training.disk import parse_json, read_text, reason
from training.evaluation.report import sample, summary
from training.interchange.starting import start_from
from training.loop.program import Plan, Preview, preview
from training.loop.trainer import Watch
from training.loop.trainer import train as run_loop
from training.mesh.cpu import as_devices, keep_memory
from training.mesh.placement import Placement
from training.mesh.processes import Processes, ProcessesError
from training.mesh.shape import accelerators, n_places, over_all
from training.presets import PRESETS
from training.runs.checkpoints import saved_steps
from training.runs.directory import SHARED, Description, RunDirectory, RunError, load_run
from training.runs.interrupts import Interrupted, Interrupts
from training.settings import GROUPS, KINDS, SETTINGS, Settings, SettingsError, converted, flag
from training.tasks import TASKS, Task, settings_to_json
from training.tasks.models import config_to_json, model_config
from training.tasks.objectives import resolved
from training.tasks.own_lines import modules_of

COMMON = (
    "help", "help_all", "dry_run", "run", "preset", "epochs", "data", "tokenizer", "N_V", "l_max", "variant", "L",
    "L_enc", "L_dec", "H", "d_e", "d_mlp", "start_from", "lora_rank", "dropout", "steps", "batch_size", "learning_rate",
    "dtype", "seed", "mesh", "eval_every", "patience",
)  # fmt: skip
"""What --help shows; --help-all shows everything."""
FILES = ("data", "validation_data", "pairs", "labeled")  # the settings that name files


class _HelpAll(argparse.Action):
    """Print the help with all flags, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        (tasks,) = globals()["parser"](every=True)._subcommands()
        tasks.choices[parser.prog.split()[-1]].print_help()
        parser.exit()


def parser(*, every: bool = False) -> Parser:
    """Return the command line: a subcommand for each task, whose help shows `every` flag or the common ones."""
    main = Parser(description=__doc__)
    tasks = main.add_subparsers(dest="task", required=True, metavar="{" + ",".join(TASKS) + "}")
    for task in TASKS.values():
        sub = tasks.add_parser(task.name, help=task.summary, description=f"Train a model for {task.summary}.")
        add = sub.add_argument
        add("--help-all", nargs=0, action=_HelpAll, help="show all settings, and exit")
        add("--run", required=True, metavar="DIR", help="directory of the run, which is resumed if begun")
        config = "settings by name, or a run's config.json; flags take precedence"
        add("--config", metavar="FILE.json", type=local, help=config)
        presets = [name for name, (of, _) in PRESETS.items() if of == task.name]
        if presets:
            add("--preset", choices=presets, help="settings of a known model; flags and --config take precedence")
        add("--epochs", type=float, metavar="X", help="passes over the training data, in place of --steps")
        add_cache(add)
        add_model(add)
        cost = "print all settings and what an update would cost, and train nothing"
        add("--dry-run", action="store_true", help=cost)
        add("--quiet", action="store_true", help="print no progress and no samples during training")
        _add_processes(sub)
        compilation_cache.add_flags(sub)
        group: Any = sub
        for name in SETTINGS:
            if name in GROUPS:
                group = sub.add_argument_group(GROUPS[name])
            if name in task.all_settings():
                _add_flag(group, name, task)
        if not every:
            _shorten(sub)
    return main


def _shorten(sub: Parser) -> None:
    """Leave only the common flags in the help of a subcommand."""
    sub.usage = f"{sub.prog} --run DIR [--data NAME|FILE …] [settings]"
    sub.epilog = f"All settings: {sub.prog} --help-all, or docs/notes/settings.md."
    for action in sub._actions:
        if action.dest not in COMMON:
            action.help = argparse.SUPPRESS
            continue
        if action.dest in ("variant", "preset"):
            action.metavar = "NAME"
        clause, default, value = (action.help or "").rpartition(" (default: ")
        action.help = re.split("[;:] ", clause)[0] + default + value.split(";")[0].rstrip(")") + ")" * bool(default)
    for group in sub._action_groups:
        if all(action.help == argparse.SUPPRESS for action in group._group_actions):
            group.description = None


def _add_processes(sub: Parser) -> None:
    group = sub.add_argument_group("processes", "for several processes that train together, each on its own devices")
    where = "address of process 0, or auto to ask SLURM, Kubernetes or a Cloud TPU"
    group.add_argument("--coordinator", metavar="HOST:PORT", help=where)
    group.add_argument("--num-processes", type=at_least(1), metavar="N", help="number of processes")
    group.add_argument("--process-id", type=at_least(0), metavar="I", help="number of this process, from 0")


def _add_flag(group: Any, name: str, task: Task) -> None:
    setting, kind, default = SETTINGS[name], KINDS[name], task.default(name)
    shown = " ".join(default) if isinstance(default, tuple) else default
    shown = "none" if shown == "" else shown
    depends = f"; depends on {', '.join(map(flag, setting.depends))}" if setting.depends else ""
    sentence = f"{setting.help} (default: {shown}{depends})"
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": sentence}
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif kind == tuple[str, ...]:
        options |= {"nargs": "+", "metavar": {"data": "NAME|FILE", "validation_data": "FILE"}.get(name, "NAME")}
    elif setting.choices and setting.names_others:
        options |= {"metavar": "NAME", "help": f"{setting.help}: {', '.join(setting.choices)} (default: {shown})"}
    elif setting.choices:
        options["choices"] = setting.choices
    else:
        options |= {"type": kind, "metavar": {int: "N", float: "X", str: "NAME"}[kind]}
    group.add_argument(flag(name), **options)


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


def _at_commits(settings: Settings) -> Settings:
    """Return the settings with each data set of the hub at its commit."""
    return dataclasses.replace(settings, **{name: tuple(map(at_commit, getattr(settings, name))) for name in FILES})


def train(
    arguments: argparse.Namespace, given: Given, settings: Settings, interrupts: Interrupts, processes: Processes
) -> None:
    """Train, and print the model's figures and a sample; with --dry-run, only what an update would cost. `settings` are
    what is given, resolved.
    """
    files = _directory(arguments.run, given)
    settings = dataclasses.replace(settings, dtype=resolved(settings.dtype))
    if processes.count > 1:
        processes.agree("settings", settings_to_json(settings) | versions())
    Placement(settings.mesh)
    settings, note = over_all(settings, accelerators(), chosen="mesh" in given.chosen or files.exists())
    given = given.fixed(settings, "mesh", "dtype")
    if note and processes.is_main:
        say(f"note: {note}")
    if arguments.dry_run:
        description, data, initial = _prepared(arguments, given, settings, files, interrupts, processes)
        cost = preview(Plan.of(description, data, initial), time.perf_counter, interrupts.run)
        processes.leave()
        if processes.is_main:
            print(described(description.settings, cost, data.n_tokens))
        return
    with files.locked(lambda text: say(f"note: {text}")) if processes.is_main else contextlib.nullcontext():
        _check_shared(files, processes)
        began = files.exists()
        description, data, initial = _prepared(arguments, given, settings, files, interrupts, processes)
        settings, model = description.settings, config_to_json(description.config)
        processes.agree("run", {"began": began, **data.fingerprints, "model": model})
        plan = Plan.of(description, data, initial)
        if processes.is_main:
            files.resume(description) if began else files.begin(description, data.tokenizer)
            for note in data.notes:
                say(f"note: {note}")
        display = Display(settings, quiet=arguments.quiet, silent=not processes.is_main)
        try:
            results = run_loop(plan, files, Watch(interrupts, display, time.perf_counter, processes))
        finally:
            display.close()
        processes.leave()
        if not processes.is_main:
            return
        for line in summary(settings, data, results):
            print(line)
        text = sample(load_run(files.path, lines=given.lines))
        if text:
            show(text)
        print(f"The run is in {files.path}.", flush=True)


def _directory(path: Path, given: Given) -> RunDirectory:
    """Return the directory of the run; one whose model cannot be read is refused before the data are."""
    files = RunDirectory(path, lines=given.lines)
    if files.config.is_file():
        files.description()
    return files


def described(settings: Settings, preview: Preview, tokens: int) -> str:
    """Return what ``--dry-run`` prints: the settings after all defaults, and the cost of an update."""
    lines = ["settings:"]
    for name in SETTINGS:
        if name in GROUPS:
            lines.append(f"  {GROUPS[name]}")
        if name in TASKS[settings.task].all_settings():
            lines.append(f"    {_words(name, getattr(settings, name))}")
    active = f", {preview.active:,} of them active for each token" if preview.active != preview.parameters else ""
    of_them = f" ({preview.trained:,} of them trained)" if preview.trained != preview.parameters else ""
    seconds = preview.flops / preview.peak
    products = f"{preview.flops:.3g} FLOPs in matrix products, at {preview.peak:.3g} FLOP/s"
    needed = f"{_size(preview.needed)} on each device by the compiler" if preview.needed else "not known"
    return "\n".join(
        [
            *lines,
            f"parameters: {preview.parameters:,}{active}{of_them}",
            f"training data: {tokens:,} tokens",
            f"devices: {preview.device}",
            f"memory: {needed}; available: {_size(preview.limit)}",
            f"time: at least {seconds:.3g} s an update and {settings.steps * seconds:.3g} s in all: {products}",
        ]
    )


def _words(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag(name) if value else flag(name).replace("--", "--no-", 1)
    text = " ".join(value) or "(none)" if isinstance(value, tuple) else value
    return " ".join((flag(name), '""' if text == "" else str(text)))


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def _prepared(
    arguments: argparse.Namespace,
    given: Given,
    settings: Settings,
    files: RunDirectory,
    interrupts: Interrupts,
    processes: Processes,
) -> tuple[Description, RunData, Any]:
    """Return the run's description, its data, and the parameters to start from (None: random ones). What is given is
    resolved again with the sizes of the model to start from, if there is one, and once the data are counted.
    """
    began, start = files.exists(), None
    if not began:
        settings, before = _at_commits(settings), settings
        given = given.fixed(settings, *(name for name in FILES if getattr(settings, name) != getattr(before, name)))
    if settings.start_from and (settings.lora_rank or not began):
        start = start_from(settings, functools.partial(run_of, cache=arguments.cache), given.lines)
        given = given._replace(model=Model(start.name, start.sizes))
        settings = resolve(given)
        start = start.fitted(settings)
    with Reading(quiet=arguments.quiet or not processes.is_main) as reading:
        options: dict[str, Any] = {
            "tokenizer": load_tokenizer(files.tokenizer) if began else start.tokenizer if start else None,
            "cache_dir": arguments.cache,
            "progress": reading.tokenized,
        }
        data = interrupts.run(lambda: load_run_data(settings, **options))
    if settings.start_from:
        config = start.config if start else files.description().config
    else:
        config = model_config(settings, data.tokenizer.N_V, given.lines)
    settings = resolve(given._replace(n_examples=data.train.n_examples, N_V=config.N_V))
    description = Description(settings, config, data.labels, data.fingerprints | (start.fingerprints if start else {}))
    if began:
        files.check_continues(description)
    if start and start.labels and start.labels != data.labels:
        note = (
            f"the {len(data.labels)} classes of the data differ from the {len(start.labels)} of {settings.start_from}: "
            "its head is replaced by a new one"
        )
        data = dataclasses.replace(data, notes=(*data.notes, note))
    return description, data, start.params(data.labels) if start else None


def _join(arguments: argparse.Namespace, processes: Processes) -> None:
    """Connect to the other processes; if one of them is lost later, this one exits with a message."""

    def end(reason: str) -> None:
        say(f"{called('train')}: {reason}; {_advice(arguments)}")
        os._exit(1)

    def stop() -> None:
        if processes.is_main and not arguments.process_id:
            _say_interrupted(arguments)
        os._exit(128 + signal.SIGTERM)

    enter(lambda: stop() if processes.all_stop() else None)
    processes.join(arguments.coordinator, arguments.num_processes, arguments.process_id, end, stop)
    note_connection()


def _stopped(arguments: argparse.Namespace, processes: Processes, interrupted: Interrupted) -> int:
    """Say that the training was interrupted, and return the exit status."""
    if processes.count == 1 or not processes.all_stop():
        processes.leave()
    if processes.is_main:
        _say_interrupted(arguments)
    if interrupted.working:
        sys.stdout.flush()
        os._exit(interrupted.status)  # nothing else stops a compilation
    return interrupted.status


def _say_interrupted(arguments: argparse.Namespace) -> None:
    begun = saved_steps(RunDirectory(arguments.run).checkpoints)
    say(f"interrupted; rerun the command to {'resume from the last checkpoint' if begun else 'start over'}")


def _advice(arguments: argparse.Namespace) -> str:
    step = next(iter(saved_steps(RunDirectory(arguments.run).checkpoints)), None)
    kept = "there is no checkpoint yet" if step is None else f"the last checkpoint is of step {step}"
    return f"{kept}; restart all processes, of any number, to {'start over' if step is None else 'resume'}"


def _check_shared(files: RunDirectory, processes: Processes) -> None:
    """Check that this process sees the directory of process 0, or raise ProcessesError."""
    if processes.count == 1:
        return
    token = files.path / f"{secrets.token_hex(8)}{SHARED}"
    if processes.is_main:
        token.touch()
    theirs = Path(processes.broadcast_from_main("directory", str(token)))
    if not (files.path / theirs.name).exists():
        raise ProcessesError(f"--run: expected a directory that all processes share, got {files.path}")
    processes.wait_for_all("directory")
    if processes.is_main:
        token.unlink()


def versions() -> dict[str, str]:
    """Return what must be the same in all processes besides the settings: versions, and a hash of the code."""
    packages = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")
    root = Path(__file__).parents[2]
    code = hashlib.sha256()
    for path in sorted(path for room in ("algorithms", "training") for path in (root / room).rglob("*.py")):
        code.update(path.read_bytes())
    found = {name: metadata.version(name) for name in packages}
    return {"Python": platform.python_version(), **found, "code": code.hexdigest()[:12]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    words = with_task(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    processes = Processes()
    if not arguments.coordinator and (arguments.num_processes, arguments.process_id) != (None, None):
        raise ProcessesError("--coordinator: expected HOST:PORT, the same for all --num-processes, got none; give it")
    if arguments.coordinator and not is_supervised():
        of = f" of {arguments.num_processes}" if arguments.num_processes else ""
        who = "this process" if arguments.process_id is None else f"process {arguments.process_id}{of}"
        return supervise(words, who=who, advice=functools.partial(_advice, arguments))
    with Interrupts() as interrupts:
        try:
            given = given_by(arguments)
            settings = resolve(given)
            keep_memory()
            compilation_cache.begin(arguments, alone=not arguments.coordinator)
            if arguments.coordinator:
                _join(arguments, processes)
            else:
                as_devices(n_places(settings.mesh))
            train(arguments, given, settings, interrupts, processes)
        except (ValueError, RuntimeError, OSError) as error:
            if processes.are_stopping:
                return _stopped(arguments, processes, Interrupted(128 + signal.SIGTERM))
            if processes.count > 1 and (isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)):
                error = RuntimeError(f"another process is gone: {str(error).splitlines()[0]}; {_advice(arguments)}")
            processes.leave(str(error))
            raise error from None
        except Interrupted as interrupted:
            return _stopped(arguments, processes, interrupted)
    return 0
