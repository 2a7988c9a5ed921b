"""docs/tour.ipynb: it runs from top to bottom, and prints what is committed."""

import os
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end
ROOT = Path(__file__).resolve().parents[2]
ON_THIS_MACHINE = ("train_main(", "SmolLM2")
"""What is in cells whose text may differ: the figures of a training, and whether a model has been fetched."""


def printed(cell):
    """What a cell prints, without differences of rounding."""
    text = "".join(output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.outputs)
    return re.sub(r" *\d\.\de[-+]\d+", "", text)


def pictures(cell):
    return sum("image/png" in output.get("data", {}) for output in cell.outputs)


@pytest.mark.thorough
def test_the_tour_runs_and_prints_what_is_committed(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    committed, done = (nbformat.read(ROOT / "docs" / "tour.ipynb", 4) for _ in range(2))
    where = {"metadata": {"path": str(ROOT / "docs")}}
    client = nbclient.NotebookClient(done, timeout=600, kernel_name="python3", coalesce_streams=True, resources=where)
    (tmp_path / "tour").write_text("of another user")
    client.execute()
    assert len(list(tmp_path.glob("tour-*"))) == 1
    cells = [pair for pair in zip(committed.cells, done.cells, strict=True) if pair[0].cell_type == "code"]
    assert sum(pictures(cell) for cell, _ in cells) == 2
    for before, now in cells:
        assert pictures(before) == pictures(now)
        if not any(part in before.source for part in ON_THIS_MACHINE):
            assert printed(before) == printed(now)
    assert re.findall(r"^(\w+) .* different$", printed(cells[-1][1]), re.MULTILINE) == ["4", "5", "return"]


def test_what_is_committed_is_small():
    assert (ROOT / "docs" / "tour.ipynb").stat().st_size < 250_000
