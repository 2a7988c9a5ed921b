"""Speed of a user's training, measured in this process: train.py's loop on real text."""

import contextlib
import io
import json
import statistics
import tempfile
import time
from pathlib import Path

from training.benchmarks.timing import table
from training.commands.in_python import train
from training.settings import Settings

STEPS, WARM = 100, 20
"""Updates of a run, and the first ones, which are not counted."""


def training(settings: Settings, bare: float) -> str:
    """Return the tokens/s of train.py's loop beside `bare`, those of the update; the vocabulary is as large."""
    same = ("variant", "L", "H", "d_e", "d_mlp", "l_max", "batch_size", "optimizer", "schedule", "dtype", "unroll")
    given = {name: getattr(settings, name) for name in same} | {"tokenizer": "bytes", "steps": STEPS}
    given |= {"vocabulary_multiple": -(-settings.N_V // 128) * 128, "eval_batches": 1, "eval_every": STEPS}
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        start, run = time.perf_counter(), Path(directory) / "run"
        train("d", run, quiet=True, **given)
        seconds = time.perf_counter() - start
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    rates = [line["tokens_per_second"] for line in lines[WARM:] if line.get("tokens_per_second")]
    rate = statistics.median(rates)
    row = [f"{rate:.0f}", f"{bare:.0f}", f"{rate / bare:.2f}", f"{seconds:.0f}"]
    header = ["tokens/s of the loop", "of the bare update", "loop / bare", "s of the whole run"]
    title = f"`train.py` on Python's documentation, {STEPS} updates of batch {settings.batch_size}, packed documents."
    return f"{title}\n\n{table(header, [row])}"
