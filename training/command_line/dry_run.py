"""The output of `--dry-run`: settings and cost of an update."""

from typing import Any

from training.loop.preview import Preview
from training.settings import GROUPS, SETTINGS, Settings, flag
from training.tasks import TASKS


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
