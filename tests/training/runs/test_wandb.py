"""--wandb: what Weights & Biases is given are the lines of metrics.jsonl (tests/project/test_extras.py runs it)."""

import sys
import types

import pytest

from tests.training_cases import make_trainer, settings_for
from training.runs import metrics, weights_and_biases
from training.tasks import settings_to_json

SETTINGS = {"rows": "chunks", "eval_every": 2, "checkpoint_every": 2, "wandb": True, "schedule": "constant"}


@pytest.fixture
def wandb(monkeypatch):
    """A module in place of theirs: what each run was begun with, what it logged by step, and whether it finished."""
    begun = []

    class Run:
        def __init__(self, **options):
            self.options, self.logged, self.is_finished = options, {}, False
            begun.append(self)

        def log(self, values, step):
            self.logged.setdefault(step, {}).update(values)

        def finish(self):
            self.is_finished = True

    named = {"init": Run, "Settings": lambda **options: options, "Error": RuntimeError}
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(**named))
    return begun


@pytest.mark.end_to_end
def test_what_is_logged_is_the_record_of_the_run(tmp_path, wandb):
    """A run that resumes goes on in the same run of theirs."""
    run = tmp_path / "run"
    run.mkdir()
    for steps in (2, 4):
        settings = settings_for("d", **SETTINGS, steps=steps)
        writers = [weights_and_biases.wandb_writer(run, settings_to_json(settings))]
        make_trainer(run, settings, writers=writers)[0].train()
    lines = metrics.read_metrics(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    logged = wandb[0].logged | wandb[1].logged
    assert logged == {line["step"]: {name: v for name, v in line.items() if name != "step"} for line in lines}
    for one in wandb:
        assert (one.is_finished, one.options["id"]) == (True, (run / "wandb" / "id").read_text())
        assert (one.options["resume"], one.options["dir"]) == ("allow", str(run))
    assert wandb[1].options["config"] == settings_to_json(settings)
