"""--wandb, offline: what Weights & Biases has on the disk are the lines of metrics.jsonl."""

import importlib
import json
import struct

import pytest

from tests.training_cases import make_trainer, settings_for
from training.runs import metrics, weights_and_biases
from training.tasks import settings_to_json

SETTINGS = {"rows": "chunks", "eval_every": 2, "checkpoint_every": 2, "wandb": True, "schedule": "constant"}


def chunks(data):
    """The chunks of LevelDB's log format behind a header of 7 bytes: CRC, length, kind, and what was written."""
    place, block = 7, 1 << 15
    whole = b""
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # in one piece, or the last one
            yield whole
            whole = b""


def records(directory):
    """What is in the files of the runs under a directory, in the order in which they were made."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for path in sorted(directory.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for data in chunks(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(data)
            yield record


def history(directory):
    for record in records(directory):
        if record.WhichOneof("record_type") == "history":
            of_line = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
            }
            yield {name: value for name, value in of_line.items() if not name.startswith("_")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_is_logged_is_the_record_of_the_run(tmp_path, monkeypatch):
    """A run that resumes goes on in the same run of theirs."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for steps in (2, 4):
        (tmp_path / "run").mkdir(exist_ok=True)
        settings = settings_for("d", **SETTINGS, steps=steps)
        writers = [weights_and_biases.wandb_writer(tmp_path / "run", settings_to_json(settings))]
        trainer, _ = make_trainer(tmp_path / "run", settings, writers=writers)
        trainer.train()
    wandb.teardown()  # their process writes what is left
    logged = list(history(tmp_path / "run"))
    lines = metrics.read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(lines) == 4
    for line, found in zip(lines, logged, strict=True):
        assert found == {name: value for name, value in line.items() if name != "step"}
    runs = [record.run for record in records(tmp_path / "run") if record.WhichOneof("record_type") == "run"]
    assert {run.run_id for run in runs} == {(tmp_path / "run" / "wandb" / "id").read_text()}
    settings = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert settings["learning_rate"] == trainer.plan.settings.learning_rate
