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


def _entry(name: str, **environments: Mapping[str, str]) -> Callable[..., int]:
    """Return the command of ``training/commands/NAME.py``, whose JAX is imported in the environment of its part."""

    def main(argv: Arguments) -> int:
        if "jax" not in sys.modules:
            part = (sys.argv[1:] if argv is None else argv)[:1]
            os.environ.update(environments.get("".join(part), {}))
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


benchmark_main = _entry("benchmark", scaling=ENVIRONMENT)
convert_main = _entry("convert")
crosscheck_main = _entry("crosscheck")
evaluate_main = _entry("evaluate")
generate_main = _entry("generate")
induction_main = _entry("induction")
look_inside_main = _entry("look_inside")
serve_main = _entry("serve")
train_main = _entry("train")
