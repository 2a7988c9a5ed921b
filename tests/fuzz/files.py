"""Damaged runs, checkpoints, metrics and data: they are read, or refused with a sentence of ours."""

import functools
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from algorithms import GPT2, DTransformerConfig
from tests.cases import random_theta
from tests.fuzz.comparing import one_of
from tests.fuzz.damage import damaged_bytes
from tests.run_cases import make_run
from training.data.files import File, FileRecords
from training.data.tokenizers import ByteTokenizer
from training.interchange import load_model, save_pretrained
from training.runs.metrics import read_metrics
from training.runs.trained_model import load_run

__all__ = ["check"]

CONFIG = DTransformerConfig(N_V=259, l_max=8, L=1, H=2, d_e=4, d_mlp=6, variant=GPT2)
OURS = ("/algorithms/", "/training/")
LONGEST = 5000
"""Characters of the longest sentence: some repeat a name, and damage makes names of 3000."""
DATA = {
    "a.txt": "One line.\nAnother, é.\n\nA third.\n",
    "a.jsonl": '{"text": "one"}\n{"text": "two", "n": [1, {"a": null}]}\n',
    "a.tsv": "one\tham\ntwo\tspam\n",
    "a.csv": "text,label\none,ham\ntwo,spam\n",
}


@functools.cache
def _originals() -> Path:
    """A run, a checkpoint, metrics and data, as they should be."""
    path = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    make_run(path / "run", "d", L=1)
    save_pretrained(path / "checkpoint", random_theta(CONFIG), CONFIG, ByteTokenizer())
    (path / "metrics").mkdir()
    (path / "metrics" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n')
    (path / "data").mkdir()
    for name, text in DATA.items():
        (path / "data" / name).write_text(text, encoding="utf-8")
    return path


def _read_data(folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        kind = "labeled" if file.suffix in {".tsv", ".csv"} else "text"
        for _ in FileRecords([File.of(file, kind)], kind):
            pass


READERS: dict[str, Callable[[Path], object]] = {
    "run": load_run,
    "checkpoint": load_model,
    "metrics": lambda folder: read_metrics(folder / "metrics.jsonl"),
    "data": _read_data,
}


def check(rng: np.random.Generator) -> None:
    """Damage one file, or two, and read all."""
    kind = one_of(rng, "run", "run", "checkpoint", "checkpoint", "metrics", "data")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        copy = Path(folder) / kind
        shutil.copytree(_originals() / kind, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        damaged = []
        for _ in range(rng.integers(1, 3)):
            file = one_of(rng, *files)
            damaged.append(file.name)
            if rng.random() < 0.05:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(damaged_bytes(rng, file.read_bytes() if file.exists() else b""))
        try:
            READERS[kind](copy)
        except (ValueError, OSError, RuntimeError) as error:
            _check_sentence(error, f"{kind}, {damaged}")


def _check_sentence(error: Exception, what: str) -> None:
    """Check that an error is one that a command says as it is, in words of ours."""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, OSError) and error.strerror:  # the commands name its file
        return
    sentence = str(error)
    is_ours = any(part in raised_in for part in OURS)
    if not is_ours or not sentence or "\n" in sentence or len(sentence) > LONGEST:
        raise AssertionError(f"{what}: not a sentence of ours: {type(error).__name__}: {sentence[:400]}") from error
