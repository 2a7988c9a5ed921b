"""Metrics for Weights & Biases."""

import importlib
import os
import uuid
from pathlib import Path
from typing import Any

from training.disk import write_atomically
from training.runs.metrics import Writer


class _WeightsAndBiases:
    def __init__(self, run: Any) -> None:
        self._run = run

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self._run.log({tag: scalar_value}, step=global_step)

    def close(self) -> None:
        self._run.finish()


def wandb_writer(directory: Path, settings: dict[str, Any]) -> Writer:
    """Return a writer for Weights & Biases, with files in `directory`/wandb. Raises RuntimeError if unusable."""
    wandb: Any = importlib.import_module("wandb")
    kept = directory / "wandb" / "id"
    kept.parent.mkdir(exist_ok=True)
    if not kept.exists():
        write_atomically(kept, lambda path: path.write_text(uuid.uuid4().hex[:12]))
    project, quiet = os.environ.get("WANDB_PROJECT", "formal-algorithms"), wandb.Settings(silent=True, console="off")
    where = {"dir": str(directory), "name": directory.name, "id": kept.read_text(), "project": project}
    try:
        return _WeightsAndBiases(wandb.init(**where, config=settings, resume="allow", settings=quiet))
    except wandb.Error as error:
        sentence = str(error).splitlines()[0]
        raise RuntimeError(f"Weights & Biases: {sentence}; set WANDB_MODE=offline to keep its files here") from None
