"""The table of all settings, docs/settings.md, from the settings themselves.

python -m training.commands.settings_table > docs/settings.md
"""

from typing import Any

from training.commands.arguments import flag
from training.presets import PRESETS
from training.settings import (
    FINE_TUNING,
    FINE_TUNING_DIVISOR,
    GROUPS,
    LOW_RANK_DIVISOR,
    OPTIMIZERS,
    SCHEDULES,
    SETTINGS,
)
from training.tasks import TASKS

HEADING = """# Settings

Every flag of `train.py`, which is also its name in `config.json` and in a file for `--config` (there with underscores).
This page is made by `python -m training.commands.settings_table`; a test keeps it so. A run may be resumed with another
value of what is marked ↻, since it changes no number of the training, or only how numbers are rounded.
"""


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else _shown(value)


def _defaults(name: str) -> str:
    of_each = {task.name: _cell(task.default(name)) for task in TASKS.values() if name in task.all_settings()}
    if name in ("warmup", "lora_alpha"):
        return {"warmup": "a tenth of the steps", "lora_alpha": "twice the rank (`d`)"}[name]
    if len(set(of_each.values())) == 1 and len(of_each) == len(TASKS):
        return next(iter(of_each.values()))
    return ", ".join(f"{value} (`{task}`)" for task, value in of_each.items())


def _brought(choices: dict[str, dict[str, Any]]) -> list[str]:
    rows = [
        f"| `{name}` | {', '.join(f'{flag(n)} {_cell(v)}' for n, v in of.items())} |" for name, of in choices.items()
    ]
    return ["| | brings |", "|---|---|", *rows]


def table() -> str:
    """Return the page."""
    lines = [HEADING]
    for name, setting in SETTINGS.items():
        if name in GROUPS:
            lines += ([""] if len(lines) > 1 else []) + [f"## {GROUPS[name].capitalize()}", ""]
            lines += ["| flag | what | default |", "|---|---|---|"]
        choices = f": {', '.join(setting.choices)}" if setting.choices else ""
        mark = " ↻" if setting.continues else ""
        lines.append(f"| `{flag(name)}`{mark} | {setting.help}{choices} | {_defaults(name)} |")
    lines += ["", "## Defaults that depend on a choice", "", "Where the choice differs from the task's default:", ""]
    lines += [*_brought(OPTIMIZERS), "", *_brought({n: of for n, of in SCHEDULES.items() if of})]
    brings = ", ".join(f"`{flag(name)} {value}`" for name, value in FINE_TUNING.items())
    lines += ["", f"`--from` brings {brings}, and 1/{FINE_TUNING_DIVISOR} of every learning rate above."]
    lines += [f"With `--lora-rank` it is 1/{LOW_RANK_DIVISOR} of them, and `--weight-decay 0.0`."]
    lines += ["", "## Presets", "", "`--preset NAME` begins from the settings of a known model.", ""]
    lines += ["| | task | settings |", "|---|---|---|"]
    for name, (task, values) in PRESETS.items():
        shown = ", ".join(f"{flag(n)} {_cell(v)}" for n, v in values.items())
        lines.append(f"| `{name}` | `{task}` | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
