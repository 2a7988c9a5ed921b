"""metrics.jsonl, damaged or cut off, and event files: what TensorBoard's own definitions read of them."""

import importlib
import struct

import pytest

from training.runs.event_files import EventFile, _checksum
from training.runs.metrics import read_metrics


def test_a_last_line_without_its_end_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1, "loss": 2.5}]


@pytest.mark.parametrize("line", [b"{", b"[1]", b"3", b"\xff\xfe", b"[" * 100_000, b""])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: expected a JSON object"):
        read_metrics(path)


def records(data):
    """The contents of a file's records, whose checksums are right."""
    while data:
        length = data[:8]
        n = struct.unpack("<Q", length)[0]
        assert data[8:12] == _checksum(length)
        yield data[12 : 12 + n]
        assert data[12 + n : 16 + n] == _checksum(data[12 : 12 + n])
        data = data[16 + n :]


def test_the_checksum_is_crc_32c():
    masked = struct.unpack("<I", _checksum(b"123456789"))[0] - 0xA282EAD8 & 0xFFFFFFFF
    assert (masked >> 17 | masked << 15) & 0xFFFFFFFF == 0xE3069283  # the check value of CRC-32C


def written(directory):
    file = EventFile(directory / "tensorboard", 300)
    file.add_scalar("loss", 2.5, 301)
    file.close()
    (path,) = (directory / "tensorboard").iterdir()
    return list(records(path.read_bytes()))


def test_a_number_is_written_with_its_name_and_step(tmp_path):
    first, begun, loss = (record[9:] for record in written(tmp_path))  # behind the time
    assert (first, begun) == (b"\x1a\x0dbrain.Event:2", b"\x10\xac\x02\x3a\x02\x08\x01")
    assert loss == b"\x10\xad\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x20\x40"


@pytest.mark.end_to_end
def test_tensorboards_definitions_read_it(tmp_path):
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    events = [event_pb2.Event.FromString(record) for record in written(tmp_path)]
    assert all(event.wall_time > 1e9 for event in events)
    assert events[0].file_version == "brain.Event:2"
    assert (events[1].step, events[1].session_log.status) == (300, event_pb2.SessionLog.START)
    (value,) = events[2].summary.value
    assert (events[2].step, value.tag, value.simple_value) == (301, "loss", 2.5)
