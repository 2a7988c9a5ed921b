"""Where memory is short, a batch is computed in more parts, and nothing else changes."""

import json
import weakref

import chex
import jax
import pytest

from tests.training_cases import make_trainer, settings_for
from training.loop import cost as memory
from training.loop.diagnosis import TrainingError
from training.loop.program import Plan, Program
from training.runs.metrics import read_metrics
from training.runs.trained_model import load_run

SETTINGS = {"rows": "chunks", "steps": 3, "eval_every": 3, "batch_size": 12, "l_max": 7}


pytestmark = pytest.mark.usefixtures("as_most_callers")


def train(directory, **values):
    trainer, witness = make_trainer(directory, settings_for("d", **SETTINGS | values))
    trainer.train()
    return witness, trainer


@pytest.fixture(scope="module")
def in_three_parts(tmp_path_factory, as_most_callers):
    directory = tmp_path_factory.mktemp("runs") / "three"
    witness, _ = train(directory, accumulation_steps=3)
    return directory, witness.losses


def assert_became(directory, witness, expected):
    """It is the run in three parts: its settings, its losses, its parameters."""
    wanted, losses = expected
    assert json.loads((directory / "config.json").read_text()) == json.loads((wanted / "config.json").read_text())
    assert witness.losses == losses
    chex.assert_trees_all_equal(*(load_run(d).theta for d in (directory, wanted)))
    assert [line["step"] for line in read_metrics(directory / "metrics.jsonl")] == [1, 2, 3]


class StopError(Exception):
    """Raised where the loop would begin."""


def compiled_only(trainer, monkeypatch):
    """Begin a training with no more than the counted parts compiled."""
    parts = []
    monkeypatch.setattr(
        Program, "of", lambda plan, *_: Program(plan, parts.append(plan) or plan.settings.accumulation_steps, None, 1e9)
    )

    def stop(*_):
        raise StopError

    monkeypatch.setattr("training.loop.trainer._facts", stop)
    with pytest.raises(StopError):
        trainer.train()
    return [plan.settings.accumulation_steps for plan in parts]


def test_what_the_compiler_counts_decides(tmp_path, monkeypatch):
    trainer, witness = make_trainer(tmp_path / "short", settings_for("d", **SETTINGS))
    monkeypatch.setattr(memory, "needed", lambda parts: 100 // parts)
    monkeypatch.setattr(memory, "limit", lambda devices: 30)
    assert compiled_only(trainer, monkeypatch) == [1, 2, 4]
    parts = [f"memory is short: each batch is computed in {b} parts instead of {a}" for a, b in ((1, 2), (2, 4))]
    assert [warning.split(" (")[0] for warning in witness.warnings] == parts
    assert json.loads((tmp_path / "short" / "config.json").read_text())["settings"]["accumulation_steps"] == 4


@pytest.mark.end_to_end
@pytest.mark.parametrize("where", [pytest.param("while compiling", marks=pytest.mark.slow), "in the first update"])
def test_an_update_that_does_not_fit_begins_again(tmp_path, in_three_parts, monkeypatch, where):
    trainer, witness = make_trainer(tmp_path / "short", settings_for("d", **SETTINGS))
    original, calls, states = Program.of, [], []

    def fail(*arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes")

    def compiled(plan, *arguments):
        calls.append(plan.settings.accumulation_steps)
        if len(calls) > 1:
            return original(plan, *arguments)
        if where == "while compiling":
            fail()
        return original(plan, *arguments)._replace(step=fail)

    def begins(plan, first_state=Plan.first_state):
        assert all(state() is None for state in states)  # whose memory would be taken twice
        state = first_state(plan)
        states.append(weakref.ref(state.params.W_e))
        return state

    monkeypatch.setattr(Plan, "first_state", begins)
    monkeypatch.setattr(Program, "of", compiled)
    monkeypatch.setattr(memory, "in_more_parts", lambda s, of=memory.in_more_parts: of(s) and of_three(s))
    trainer.train()
    assert (calls, len(states)) == ([1, 3], 1 if where == "while compiling" else 2)
    assert len(witness.warnings) == 1
    assert_became(tmp_path / "short", witness, in_three_parts)


def of_three(settings):
    return settings_for("d", **SETTINGS, accumulation_steps=3)


def test_parts_of_one_sequence_are_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "limit", lambda devices: 0)
    monkeypatch.setattr(memory, "needed", lambda compiled: 1)
    trainer, _ = make_trainer(tmp_path / "run", settings_for("d", **SETTINGS, accumulation_steps=12))
    monkeypatch.setattr(Program, "of", lambda plan, *_: Program(plan, None, None, 1e9))
    with pytest.raises(TrainingError, match="not enough memory for a batch of 12 sequences, not even in 12 parts"):
        trainer.train()


def test_the_next_number_of_parts_divides_the_batch_where_memory_is_exhausted():
    found, settings = [], settings_for("d", **SETTINGS)
    while settings is not None:
        found.append(settings.accumulation_steps)
        settings = memory.in_more_parts(settings)
    assert found == [1, 2, 4, 12]
    on_a_mesh = settings_for("d", **SETTINGS | {"batch_size": 24}, mesh="data=4")
    assert memory.in_more_parts(on_a_mesh).accumulation_steps == 2
    assert memory.in_more_parts(settings_for("d", **SETTINGS | {"batch_size": 4}, mesh="data=4")) is None
    assert memory.is_exhausted(jax.errors.JaxRuntimeError("INTERNAL: Failed to allocate: Out of memory"))
    assert not memory.is_exhausted(jax.errors.JaxRuntimeError("INTERNAL: something else"))
    assert not memory.is_exhausted(ValueError("RESOURCE_EXHAUSTED"))
