"""TensorBoard's event files."""

import os
import struct
from pathlib import Path

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
