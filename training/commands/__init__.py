"""The commands, for scripts/ and the installed command lines.

A command takes arguments, prints, and returns an exit status. Commands import their modules when called, so that Ctrl-C
ends the import.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

from training.benchmarks.accelerators import ENVIRONMENT
from training.command_line.running import Arguments, command


def _entry(name: str, environment: Mapping[str, str] | None = None) -> Callable[..., int]:
    """Return the command of ``training/commands/NAME.py``, whose JAX is imported in this `environment`."""

    def main(argv: Arguments) -> int:
        if "jax" not in sys.modules:
            os.environ.update(environment or {})
        return _imported(f"{__name__}.{name}").main(argv)

    main.__name__, main.__doc__ = f"{name}_main", f"Run scripts/{name}.py."
    return command(main)


def _imported(name: str) -> ModuleType:
    """Import a module without collecting garbage: what is imported stays, and walking it takes 0.2 s a command."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


benchmark_main = _entry("benchmark")
convert_main = _entry("convert")
cross_validate_main = _entry("cross_validate")
crosscheck_main = _entry("crosscheck")
ensemble_main = _entry("ensemble")
evaluate_main = _entry("evaluate")
gato_main = _entry("gato")
generate_main = _entry("generate")
induction_main = _entry("induction")
load_of_experts_main = _entry("load_of_experts")
look_inside_main = _entry("look_inside")
loss_curve_main = _entry("loss_curve")
scaling_main = _entry("scaling", ENVIRONMENT)
serve_main = _entry("serve")
train_main = _entry("train")
