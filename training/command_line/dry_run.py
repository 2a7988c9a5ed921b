"""The output of `--dry-run`: settings and cost of an update."""

from collections.abc import Callable
from typing import Any

from training.loop import cost
from training.loop.program import Plan, size
from training.settings import GROUPS, SETTINGS, flag
from training.tasks import TASKS


def described(plan: Plan, clock: Callable[[], float], run: Callable[[Callable[[], Any]], Any]) -> str:
    """Return what ``--dry-run`` prints: all settings, and the cost of an update, which `run` compiles."""
    lines, settings = ["settings:"], plan.settings
    for name in SETTINGS:
        if name in GROUPS:
            lines.append(f"  {GROUPS[name]}")
        if name in TASKS[settings.task].all_settings():
            lines.append(f"    {_words(name, getattr(settings, name))}")
    model = plan.template.params if plan.frozen is None else plan.frozen
    parameters, active, trained = size(model), cost.active_parameters(model), size(plan.template.params)
    of_active = f", {active:,} of them active for each token" if active != parameters else ""
    of_trained = f" ({trained:,} of them trained)" if trained != parameters else ""
    bytes_needed, peak = cost.needed(run(plan.compiled_step)), plan.peak(clock)
    needed = f"{_size(bytes_needed)} on each device by the compiler" if bytes_needed else "not known"
    seconds, products = plan.flops / peak, f"{plan.flops:.3g} FLOPs in matrix products, at {peak:.3g} FLOP/s"
    lines += [
        f"parameters: {parameters:,}{of_active}{of_trained}",
        f"training data: {plan.data.n_tokens:,} tokens",
        f"devices: {plan.placement.devices}",
        f"memory: {needed}; available: {_size(cost.limit(plan.placement.n_local_devices))}",
        f"time: at least {seconds:.3g} s an update and {settings.steps * seconds:.3g} s in all: {products}",
    ]
    return "\n".join(lines)


def _words(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag(name) if value else flag(name).replace("--", "--no-", 1)
    text = " ".join(value) or "(none)" if isinstance(value, tuple) else value
    return " ".join((flag(name), '""' if text == "" else str(text)))


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"
