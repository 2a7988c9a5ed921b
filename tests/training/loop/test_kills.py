"""A run that is killed at any moment keeps together what belongs together: each state of its directory is resumed."""

import contextlib
import json
import os
import shutil

import chex
import jax
import numpy as np
import pytest

from tests.training_cases import make_trainer, settings_for, untimed
from training.loop.run_store import Progress
from training.runs.checkpoints import saved_steps
from training.runs.directory import RunError
from training.runs.trained_model import load_run

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("as_most_callers")]
OFTEN = {"rows": "chunks", "steps": 8, "eval_every": 2, "checkpoint_every": 3, "max_to_keep": 2, "learning_rate": 0.01}
LOSSES = {2: 4.0, 4: 3.0, 6: 2.0, 8: 2.5}


def copied(source, target):
    """What a kill would leave, although threads of the run are at work."""

    def copy(a, b):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(a, b)

    with contextlib.suppress(shutil.Error):  # a directory is gone
        shutil.copytree(source, target, copy_function=copy)


def watch(patch, directory, states):
    """Copy the directory before each rename and removal in it."""
    busy = []

    def watched(original):
        def act(path, *arguments, **options):
            if str(path).startswith(f"{directory}/") and not busy:
                busy.append(True)
                states.append(directory.with_name(f"state{len(states)}"))
                copied(directory, states[-1])
                busy.clear()
            return original(path, *arguments, **options)

        return act

    for module, name in ((os, "rename"), (os, "replace"), (os, "unlink"), (shutil, "rmtree")):
        patch.setattr(module, name, watched(getattr(module, name)))


def evaluating(patch, losses):
    """Let evaluations have these losses, by step."""
    note = Progress.note

    def planted(self, results, *arguments):
        return note(self, {**results, "loss": losses[self.step]}, *arguments)

    patch.setattr(Progress, "note", planted)


def begun(directory, **values):
    """A trainer, its witness, and the parameters at each evaluation to come."""
    trainer, witness = make_trainer(directory, settings_for("d", **OFTEN | values))
    thetas = {}
    witness.evaluated = lambda step, results, run: thetas.update({step: jax.tree.map(np.array, run.theta)})
    return trainer, witness, thetas


def trained(directory, **values):
    """Train to the end; return the step of the best evaluation, and the parameters of each."""
    trainer, _, thetas = begun(directory, **values)
    trainer.train()
    return json.loads(trainer.files.results.read_text())["step"], thetas


def different(states):
    """The first of the states with the same files and checkpoints."""
    of_names = {}
    for state in states:
        of_names.setdefault(frozenset(str(p.relative_to(state)) for p in (*state.glob("*"), *state.glob("*/*"))), state)
    return [state for state in of_names.values() if (state / "config.json").exists()]


@pytest.mark.parametrize("patience", [0, 9])
def test_each_state_of_a_run_is_resumed_with_the_same_outcome(tmp_path, monkeypatch, patience):
    states = []
    with monkeypatch.context() as patch:
        evaluating(patch, LOSSES)
        with monkeypatch.context() as watching:
            watch(watching, tmp_path / "run", states)
            best, thetas = trained(tmp_path / "run", patience=patience)
        assert best == (6 if patience else 8)
        assert len(different(states)) > 7
        for state in different(states):
            with contextlib.suppress(RunError):  # no checkpoint yet
                load_run(state)
            assert trained(state, patience=patience)[0] == best
            assert untimed(state / "metrics.jsonl") == untimed(tmp_path / "run" / "metrics.jsonl")
            chex.assert_trees_all_equal(load_run(state).theta, load_run(tmp_path / "run").theta, thetas[best])
            assert not [path for path in state.rglob("*unfinished*") if path.parent != state]


@pytest.mark.parametrize("ends", [SystemExit, "finished"])
def test_parameters_of_a_run_that_was_continued_are_those_of_its_last_checkpoint(tmp_path, ends):
    often = OFTEN | {"schedule": "constant", "checkpoint_every": 2}
    trained(tmp_path / "run", **often)
    before = load_run(tmp_path / "run").theta
    trainer, witness, thetas = begun(tmp_path / "run", **often | {"steps": 14})
    if ends == "finished":
        trainer.train()
        last = 14
    else:
        updated = witness.updated

        def ending(step, line):
            updated(step, line)
            if step == 12:
                raise SystemExit

        witness.updated = ending
        with pytest.raises(SystemExit):
            trainer.train()
        last = saved_steps(trainer.files.checkpoints)[0]
        assert last in (10, 12)
    chex.assert_trees_all_equal(load_run(tmp_path / "run").theta, thetas[last])
    assert np.abs(np.asarray(before.W_e) - thetas[last].W_e).max() > 1e-4
