"""The models that commands are given by name."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.command_line.terminal import Bar, say
from training.data.hub_names import HUB
from training.disk import local_path
from training.interchange import load_quantized
from training.interchange.gguf_file import SUFFIX, GGUFFile
from training.interchange.names import as_run
from training.runs.directory import Run
from training.runs.trained_model import load_run

UNUSED = 30


def model_of(name: str, *, dtype: Any, placement: Any, lines: Sequence[str]) -> Run:
    """Load the model that a name means, as `load_run` does; on one device a GGUF file's stays in blocks."""
    path = local_path(name) if not name.startswith(HUB) else None
    if placement is None and path is not None and path.suffix == SUFFIX and path.is_file():
        file = GGUFFile(path)
        if file.is_quantized:
            with Bar("reading") as bar:
                return load_quantized(file, dtype=dtype, progress=bar.advance)
    return load_run(run_of(name), dtype=dtype, placement=placement, lines=lines)


def run_of(name: str, cache: Path | None = None) -> Path:
    """Return the run that a name means, as `as_run` does, and remove models that nothing has used for `UNUSED` days."""

    def converted(text: str) -> None:
        say(f"{text}\nIt is kept there until {UNUSED} days after its last use, or until --clear-models.")

    with Bar("reading") as bar:
        unused_since = time.time() - UNUSED * 24 * 3600
        return as_run(name, cache_dir=cache, unused_since=unused_since, say=converted, progress=bar.advance)
