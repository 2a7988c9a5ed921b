"""Train a model, or resume a training: what `train.py` does with its flags, which `train_flags` describes."""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import secrets
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from training.command_line import compilation_cache
from training.command_line.dry_run import described
from training.command_line.named_models import run_of
from training.command_line.progress import Display
from training.command_line.resolving import RunRequest, at_commits, resolve, run_request, with_task
from training.command_line.supervision import enter, is_supervised, note_connection, supervise
from training.command_line.terminal import Bar, say, show, waiting
from training.command_line.train_flags import parser
from training.data.loading import RunData, load_run_data
from training.data.tokenizers import load_tokenizer
from training.evaluation.report import sample, summary
from training.extras import import_early
from training.interchange.starting import start_from
from training.loop.cost import with_unrolling
from training.loop.program import Plan
from training.loop.trainer import Watch
from training.loop.trainer import train as run_loop
from training.mesh.cpu import as_devices, keep_memory
from training.mesh.placement import Placement
from training.mesh.processes import Processes, ProcessesError, gathered
from training.mesh.shape import accelerators, n_places, over_all
from training.runs.checkpoints import saved_steps
from training.runs.directory import SHARED, Description, RunDirectory
from training.runs.interrupts import Interrupted, Interrupts
from training.runs.trained_model import load_run
from training.runs.weights_and_biases import wandb_writer
from training.settings import Settings
from training.tasks import settings_to_json
from training.tasks.models import config_to_json, model_config
from training.tasks.objectives import resolved

TOKENIZING = 10.0  # seconds between two lines of progress without a terminal


def train(
    arguments: argparse.Namespace, given: RunRequest, settings: Settings, interrupts: Interrupts, processes: Processes
) -> None:
    """Train with resolved settings, print figures and a sample; with --dry-run, only print the cost of an update."""
    files = given.files
    if not arguments.dry_run:
        import_early("filelock", "matplotlib.figure", "orbax.checkpoint", *["wandb"] * settings.wandb)
    settings = dataclasses.replace(settings, dtype=resolved(settings.dtype))
    if processes.count > 1:
        processes.agree("settings", settings_to_json(settings) | versions())
    Placement(settings.mesh)
    settings, note = over_all(settings, accelerators(), chosen="mesh" in given.chosen or files.exists())
    given = given._replace(chosen={**given.chosen, "mesh": settings.mesh, "dtype": settings.dtype})
    if note and processes.is_main:
        say(f"note: {note}")
    if arguments.dry_run:
        description, data, initial = _prepared(arguments, given, interrupts, processes)
        with waiting("compiling, and measuring the peak of matrix products"):
            text = described(Plan.of(description, data, initial), time.perf_counter, interrupts.run)
        processes.leave()
        if processes.is_main:
            _note(data)
            print(text)
        return
    with files.locked(lambda text: say(f"note: {text}")) if processes.is_main else contextlib.nullcontext():
        _check_shared(files, processes)
        began = files.exists()
        description, data, initial = _prepared(arguments, given, interrupts, processes)
        settings, model = description.settings, config_to_json(description.config)
        processes.agree("run", {"began": began, **data.fingerprints, "model": model})
        plan = Plan.of(description, data, initial)
        logs = settings.wandb and processes.is_main
        writers = [wandb_writer(files.path, settings_to_json(settings))] if logs else []  # before the run records it
        if processes.is_main:
            files.resume(description) if began else files.note(description, data.tokenizer)
            _note(data)
        display = Display(settings, quiet=arguments.quiet, silent=not processes.is_main)
        try:
            results = run_loop(plan, files, Watch(interrupts, display, time.perf_counter, processes, writers))
        finally:
            display.close()
        processes.leave()
        if not processes.is_main:
            return
        for line in summary(settings, data, results):
            print(line)
        text = sample(load_run(files.path, lines=files.lines))
        if text:
            show(text)
        print(f"The run is in {files.path}.", flush=True)


def _note(data: RunData) -> None:
    for note in data.notes:
        say(f"note: {note}")


def _prepared(
    arguments: argparse.Namespace, given: RunRequest, interrupts: Interrupts, processes: Processes
) -> tuple[Description, RunData, Any]:
    """Return the run's description, by its model's and data's sizes, its data, and parameters to start from."""
    files, start = given.files, None
    began = files.exists()
    given = given if began else at_commits(given)
    settings = resolve(given)
    if settings.start_from and (settings.lora_rank or not began):
        start = start_from(settings, functools.partial(run_of, cache=arguments.cache), files.lines)
        given = given._replace(start=start)
        settings = resolve(given)
        start = start.fitted(settings)
    quiet = arguments.quiet or not processes.is_main
    with Bar("tokenizing", every=TOKENIZING, unit="B", unit_scale=True) as reading:
        options: dict[str, Any] = {
            "tokenizer": load_tokenizer(files.tokenizer) if began else start.tokenizer if start else None,
            "cache_dir": arguments.cache,
            "progress": (lambda n, total: None) if quiet else reading.advance,
        }
        data = interrupts.run(lambda: load_run_data(settings, **options))
    if settings.start_from:
        config = start.config if start else files.description().config
    else:
        config = model_config(settings, data.tokenizer.N_V, files.lines)
    settings = resolve(given._replace(n_examples=data.train.n_examples, N_V=config.N_V))
    if not began and "unroll" not in given.chosen:
        settings, unrolled = with_unrolling(settings, jax.default_backend())
        data = dataclasses.replace(data, notes=(*data.notes, unrolled) if unrolled else data.notes)
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


def _stopped(arguments: argparse.Namespace, processes: Processes, interrupted: Interrupted) -> int:
    """Say that the training was interrupted, and return the exit status."""
    processes.leave()
    if processes.is_main:
        begun = saved_steps(RunDirectory(arguments.run).checkpoints)
        say(f"interrupted; rerun the command to {'resume from the last checkpoint' if begun else 'start over'}")
    if interrupted.working:
        sys.stdout.flush()
        os._exit(interrupted.status)  # nothing else stops a compilation
    return interrupted.status


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
    if not all(gathered("seen" if (files.path / theirs.name).exists() else "")):
        raise ProcessesError(f"--run: expected a directory that all processes share, got {files.path}")
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
            if arguments.coordinator:
                enter()
            given = run_request(arguments)
            settings = resolve(given)
            keep_memory()
            compilation_cache.begin(arguments, alone=not arguments.coordinator)
            if arguments.coordinator:
                interrupts.check()
                processes.join(arguments.coordinator, arguments.num_processes, arguments.process_id)
                note_connection()
            else:
                as_devices(n_places(settings.mesh))
            train(arguments, given, settings, interrupts, processes)
        except (ValueError, RuntimeError, OSError) as error:
            if processes.count > 1 and (isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)):
                error = RuntimeError(f"another process is gone: {str(error).splitlines()[0]}; {_advice(arguments)}")
            processes.leave(fails=True)
            raise error from None
        except Interrupted as interrupted:
            return _stopped(arguments, processes, interrupted)
    return 0
