"""The metrics of a run: metrics.jsonl, one JSON object per line; also for TensorBoard and W&B."""

import contextlib
import importlib
import os
import struct
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.disk import as_json, parse_json, write_atomically
from training.extras import install


class MetricsLog:
    """Appends lines to metrics.jsonl; floats read back exactly. A checkpoint records the length of the file, to which a
    run that resumes from it truncates the file.
    """

    def __init__(self, path: Path, writers: Sequence["Writer"] = ()) -> None:
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
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        parsed = parse_json(line)
        if isinstance(parsed, dict):
            return parsed
    raise ValueError(f"{where}: expected a JSON object; the file is damaged: delete the line, or train again")


class _WeightsAndBiases:
    def __init__(self, run: Any) -> None:
        self._run = run

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self._run.log({tag: scalar_value}, step=global_step)

    def close(self) -> None:
        self._run.finish()


def wandb_writer(directory: Path, settings: dict[str, Any]) -> "Writer":
    """Return a writer for Weights & Biases (configured as usual, by WANDB_MODE, WANDB_PROJECT and `wandb login`), with
    its files in `directory`/wandb, where a resumed run continues. Raises RuntimeError if it cannot be used.
    """
    try:
        wandb = importlib.import_module("wandb")
    except ModuleNotFoundError:
        raise RuntimeError(f"wandb is not installed: {install('wandb')}") from None
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


VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # wire types of a field
WALL_TIME, STEP, FILE_VERSION, SUMMARY, SESSION_LOG = 1, 2, 3, 5, 7  # fields of an Event
START = 1  # a session's status, with which TensorBoard drops what earlier files have from its step on


class EventFile:
    """A new event file of TensorBoard, which ignores what earlier files have from `step` on: a sequence of records,
    each an Event of event.proto (https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details;
    https://protobuf.dev/programming-guides/encoding/).
    """

    def __init__(self, directory: Path, step: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        earlier = [path.name.split(".")[3] for path in directory.glob("events.out.tfevents.*")]
        number = 1 + max((int(part) for part in earlier if part.isdecimal()), default=0)  # files are read by name
        self._file = (directory / f"events.out.tfevents.{number:010}.training").open("xb", buffering=0)
        self._write(_field(FILE_VERSION, BYTES, b"brain.Event:2"))
        self._write(_field(STEP, VARINT, step) + _field(SESSION_LOG, BYTES, _field(1, VARINT, START)))

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write a number."""
        value = _field(1, BYTES, tag.encode()) + _field(2, FLOAT, struct.pack("<f", scalar_value))
        self._write(_field(STEP, VARINT, global_step) + _field(SUMMARY, BYTES, _field(1, BYTES, value)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        last_written = os.fstat(self._file.fileno()).st_mtime
        event = _field(WALL_TIME, DOUBLE, struct.pack("<d", last_written)) + event
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


Writer = EventFile | _WeightsAndBiases
"""Another destination of the metrics."""


def _varint(n: int) -> bytes:
    low, rest = n & 127, n >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _field(number: int, kind: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        value = _varint(value)
    return _varint(number << 3 | kind) + (_varint(len(value)) if kind == BYTES else b"") + value


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C (Castagnoli, reflected polynomial 82F63B78)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
