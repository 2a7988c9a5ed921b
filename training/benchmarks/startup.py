"""The processor time of whole commands, with and without a filled compilation cache, and of the import."""

import os
import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from training.benchmarks.timing import table
from training.system import processor_seconds_of_children

ROOT = Path(__file__).resolve().parents[2]  # the folder of the packages, in a checkout or an environment
TRAIN = "--tokenizer bytes --L 2 --d_e 32 --d_mlp 64 --H 2 --l_max 32 --batch-size 8 --steps 20 --quiet"
MAIN = "import sys; from training.commands import {0}_main; sys.exit({0}_main())"


def run(rounds: int) -> str:
    """Return the measurements as a Markdown table."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "book.txt").write_text("".join(pydoc_data.topics.topics.values())[:180_000], encoding="utf-8")
        seconds: dict[str, list[float]] = {}
        for i in range(rounds):
            for name, arguments in _commands(place, i).items():
                seconds.setdefault(name, []).append(_processor_seconds(arguments, place))
    rows = [[name, f"{statistics.median(s):.1f} ({min(s):.1f}-{max(s):.1f})"] for name, s in seconds.items()]
    title = "Processor time, user and system, of whole commands: median and range"
    return f"{title}.\n\n{table(['command', 's'], rows)}"


def _commands(place: Path, i: int) -> dict[str, list[str]]:
    """Return the commands by name; round i starts with an empty cache, which each command fills for the next one."""
    train = ["-c", MAIN.format("train"), "d", "--data", str(place / "book.txt"), *TRAIN.split()]
    generate = ["-c", MAIN.format("generate"), str(place / f"cold-{i}"), "--prompt", "The "]
    imports = "import jax, jax.numpy, jaxtyping, numpy, optax"
    return {
        "`train.py`, empty cache": [*train, "--run", str(place / f"cold-{i}"), "--clear-compilation-cache"],
        "`train.py`, filled cache": [*train, "--run", str(place / f"warm-{i}")],
        "`generate.py`, empty cache": [*generate, "--clear-compilation-cache"],
        "`generate.py`, filled cache": generate,
        "`import algorithms`": ["-c", "import algorithms"],
        f"`{imports}`": ["-c", imports],
    }


def _processor_seconds(arguments: list[str], place: Path) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"XDG_CACHE_HOME": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    before = processor_seconds_of_children()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)
    return processor_seconds_of_children() - before
