"""metrics.jsonl: what is read of one that is damaged, or was cut off."""

import pytest

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
