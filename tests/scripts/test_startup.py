"""What commands import before they do anything, which is what a user waits for."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LATER = ["datasets", "huggingface_hub", "jax.experimental.pallas", "matplotlib", "orbax", "sklearn", "torch"]
LATER += ["transformers", "wandb"]
IMPORTS = f"""
import importlib, pkgutil, sys
import training.commands
for module in pkgutil.iter_modules(training.commands.__path__, "training.commands."):
    if module.name != "training.commands.induction":  # which always draws
        importlib.import_module(module.name)
print(*sorted(set({LATER}) & set(sys.modules)))
"""


def test_commands_import_large_libraries_when_they_use_them():
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
