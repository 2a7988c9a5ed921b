"""Train a transformer: next tokens (d), masked tokens (e), sequence to sequence (ed), or classes of texts (classify).

    scripts/train.py d --run runs/docs                                # on Python's documentation
    scripts/train.py d --run runs/mine --data a.txt b.txt --steps 5000
    scripts/train.py ed --run runs/words --data pronunciation --l_max 24
    scripts/train.py classify --run runs/spam

Rerunning the command resumes from the last checkpoint. Exit status: 0 done; 1 the training failed;
2 wrong usage or input; 130 or 143 after Ctrl-C or SIGTERM, with a saved checkpoint.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from training.data.loading import RunData, load_run_data
from training.data.tokenizers import load_tokenizer
from training.evaluation.report import sample, summary
from training.interchange.starting import start_from
from training.loop.train_step import optimizer_from
from training.loop.trainer import Trainer
from training.mesh.sharding import Sharding
from training.runs.directory import Description, RunDirectory
from training.runs.interrupts import Interrupted, Interrupts
from training.settings import KINDS as VALUE_KINDS
from training.settings import SETTINGS, Settings, SettingsError
from training.tasks import TASKS, Task, settings_from
from training.tasks.models import check_sizes, model_config

PAPER_NAMES = {"N_V", "L", "L_enc", "L_dec", "H", "d_e", "d_mlp", "l_max", "p_mask"}  # kept as the paper writes them


def parser() -> argparse.ArgumentParser:
    """Return the command line: a subcommand for each task, a flag for each of its settings."""
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = main.add_subparsers(dest="task", required=True, metavar="{" + ",".join(TASKS) + "}")
    for task in TASKS.values():
        sub = tasks.add_parser(task.name, help=task.summary, description=f"Train on {task.summary}.")
        sub.add_argument("--run", required=True, metavar="DIR", help="directory of the run")
        sub.add_argument(
            "--config", metavar="FILE.json", help="settings by name, or a run's config.json; flags come first"
        )
        sub.add_argument(
            "--cache",
            metavar="DIR",
            help="where tokens and fetched data are kept (default: ~/.cache/formal-algorithms)",
        )
        sub.add_argument("--quiet", action="store_true", help="no progress bar")
        for name in task.all_settings():
            _add_flag(sub, name, task)
    return main


def flag(name: str) -> str:
    """Return the flag of a setting."""
    name = {"start_from": "from"}.get(name, name)
    return "--" + (name if name in PAPER_NAMES else name.replace("_", "-"))


def _add_flag(sub: argparse.ArgumentParser, name: str, task: Task) -> None:
    setting, kind, default = SETTINGS[name], VALUE_KINDS[name], task.default(name)
    shown = " ".join(default) or "none" if isinstance(default, tuple) else default
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": f"{setting.help} (default: {shown})"}
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif kind == tuple[str, ...]:
        options |= {"nargs": "+", "metavar": "NAME|FILE" if name == "data" else "FILE"}
    elif setting.choices:
        options["choices"] = setting.choices
    else:
        options |= {"type": kind, "metavar": {int: "N", float: "X", str: "NAME"}[kind]}
    sub.add_argument(flag(name), **options)


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings: flags first, then the file, then defaults.

    Raises:
        SettingsError: the file cannot be read, or a setting cannot be.
    """
    values: dict[str, Any] = {}
    if arguments.config:
        try:
            values = json.loads(Path(arguments.config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"cannot read the settings {arguments.config}: {error}") from None
        if isinstance(values, dict) and "settings" in values:
            values = values["settings"]
        if not isinstance(values, dict):
            raise SettingsError(f"{arguments.config} holds no JSON object of settings")
    given = {name: value for name, value in vars(arguments).items() if name in SETTINGS}
    return settings_from(values | given, task=arguments.task)


class Bar:
    """The progress bar: steps, loss, tokens per second, time left."""

    def __init__(self, settings: Settings, *, quiet: bool) -> None:
        self._steps, self._quiet, self._bar, self._validation = settings.steps, quiet, None, ""

    def began(self, step: int) -> None:
        """Show the bar."""
        if step:
            say(f"resuming after step {step}")
        self._bar = tqdm(total=self._steps, initial=step, disable=self._quiet, unit="step", dynamic_ncols=True)

    def updated(self, step: int, line: dict[str, Any]) -> None:
        """Move the bar."""
        if self._bar is not None:
            rate = f", {line['tokens_per_second']:.0f} tokens/s" if "tokens_per_second" in line else ""
            self._bar.set_description_str(f"loss {line['loss']:.3f}{rate}{self._validation}", refresh=False)
            self._bar.update(step - self._bar.n)

    def evaluated(self, step: int, results: dict[str, float]) -> None:
        """Show the validation loss."""
        self._validation = f", validation {results['loss']:.3f}"

    def warned(self, message: str) -> None:
        """Say what is not as it should be."""
        say(f"warning: {message}")

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def say(text: str) -> None:
    """Print a message for the user."""
    print(text, file=sys.stderr, flush=True)


def train(arguments: argparse.Namespace, settings: Settings, interrupts: Interrupts) -> None:
    """Train, and say how good the model is."""
    check_sizes(settings)
    optimizer_from(settings)
    Sharding(settings.sharding, settings.batch_size)
    files = RunDirectory(arguments.run)
    began = files.exists()
    cache = Path(arguments.cache) if arguments.cache else None
    start = start_from(settings, vars(arguments).keys()) if settings.start_from else None
    settings = start.settings if start else settings
    tokenizer = load_tokenizer(files.tokenizer) if began else start.tokenizer if start else None
    data = interrupts.run(lambda: load_run_data(settings, tokenizer=tokenizer, cache_dir=cache))
    config = start.config if start else model_config(settings, data.tokenizer.N_V)
    description = Description(settings, config, data.labels, data.fingerprints)
    bar = Bar(settings, quiet=arguments.quiet)
    initial = start.params(data.labels) if start else None
    options = {"interrupts": interrupts, "observer": bar, "clock": time.perf_counter, "initial": initial}
    trainer = Trainer(description, data, files, **options)
    if began:
        files.check_continues(description)
    else:
        files.begin(description, data.tokenizer)
    for note in data.notes:
        say(f"note: {note}")
    try:
        results = trainer.train()
    finally:
        bar.close()
    report(settings, data, results, files)


def report(settings: Settings, data: RunData, results: dict[str, float], files: RunDirectory) -> None:
    """Print what the model makes of the held-out data, and what it has learned."""
    for line in summary(settings, data, results):
        print(line)
    text = sample(files.path)
    if text:
        print(text)
    print(f"The run is in {files.path}.")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = parser().parse_args(argv)
    with Interrupts() as interrupts:
        try:
            train(arguments, read_settings(arguments), interrupts)
        except Interrupted as interrupted:
            begun = RunDirectory(arguments.run).checkpoints.is_dir()
            say(f"interrupted; rerun the command to {'resume from the last checkpoint' if begun else 'start over'}")
            if interrupted.working:
                sys.stdout.flush()
                os._exit(interrupted.status)  # a compilation cannot be stopped otherwise
            return interrupted.status
        except ValueError as error:
            say(f"train.py: {error}")
            return 2
        except RuntimeError as error:
            say(f"train.py: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
