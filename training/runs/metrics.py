"""The metrics of a run: metrics.jsonl, one JSON object per line."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from training.disk import as_json, parse_json


class Writer(Protocol):
    """Another destination of the metrics."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write a number."""

    def close(self) -> None:
        """Close what it writes to."""


class MetricsLog:
    """Appends lines to metrics.jsonl, which a run that resumes truncates to its length at the checkpoint."""

    def __init__(self, path: Path, writers: Sequence[Writer] = ()) -> None:
        self._path = path
        self._file = path.open("ab")
        self._writers = writers

    def append(self, line: dict[str, Any]) -> None:
        """Write one line, which has a `step`, or raise OSError if it cannot be written."""
        self._file.write(as_json(line).encode() + b"\n")
        self._file.flush()
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                for writer in self._writers:
                    writer.add_scalar(name, value, line["step"])

    def size(self) -> int:
        """Flush the file to disk, and return its length in bytes."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        for writer in self._writers:
            writer.close()


def cut(path: Path, size: int) -> bool:
    """Truncate metrics.jsonl to its size at a checkpoint; return False if it is shorter, so that lines are lost."""
    length = path.stat().st_size if path.exists() else 0
    if length > size:
        os.truncate(path, size)
    return length >= size


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl but an incomplete last one. Raises ValueError for one that is not an object."""
    return [*iter_metrics(path)]


def iter_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of `read_metrics`."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield _parsed(line[:-1], f"{path}, line {number}")


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        parsed = parse_json(line)
        if isinstance(parsed, dict):
            return parsed
    raise ValueError(f"{where}: expected a JSON object; the file is damaged: delete the line, or train again")
