"""Train a transformer on next tokens (d), masked tokens (e), sequence to sequence (ed), text classification (classify),
or text and images together (gato).

    scripts/train.py d --run runs/docs                                # on Python's documentation
    scripts/train.py d --run runs/mine --data a.txt b.txt --steps 5000
    scripts/train.py ed --run runs/words --data pronunciation --l_max 24
    scripts/train.py classify --run runs/spam
    scripts/train.py --run runs/docs                                  # resumes from the last checkpoint

Exit status: 0 done; 1 training failed; 2 invalid usage or input; 130 or 143 after Ctrl-C or SIGTERM, with a checkpoint
saved.
"""

import argparse
import re
from typing import Any

from training.command_line import compilation_cache
from training.command_line.arguments import Parser, add_cache, add_model, at_least, local
from training.presets import PRESETS
from training.settings import GROUPS, KINDS, SETTINGS, flag
from training.tasks import TASKS, Task

COMMON = (
    "help", "help_all", "dry_run", "run", "preset", "epochs", "data", "tokenizer", "N_V", "l_max", "variant", "L",
    "L_enc", "L_dec", "H", "d_e", "d_mlp", "start_from", "lora_rank", "dropout", "steps", "batch_size", "learning_rate",
    "dtype", "seed", "mesh", "eval_every", "patience",
)  # fmt: skip
"""Flags in --help; --help-all shows all."""


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
        add("--help-all", nargs=0, action=_HelpAll, help="show all settings, and exit; ↻: may change in a resumed run")
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
    sub.epilog = f"All settings: {sub.prog} --help-all."
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
    mark = "↻ " if setting.continues else ""
    sentence = f"{mark}{setting.help} (default: {shown}{depends})"
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
