"""Several models as one: the mean of their distributions."""

import chex
import jax
import numpy as np
import pytest

from algorithms import d_transformer
from tests import training_cases as cases
from training.data.tokenizers import CharacterTokenizer
from training.evaluation.ensembles import check_alike, ensemble_totals
from training.runs.directory import Run, RunError
from training.tasks import TASKS
from training.tasks.models import model_config
from training.tasks.objectives import make_totals

TOKENIZER = CharacterTokenizer([chr(ord("a") + i) for i in range(cases.LETTERS)])


def runs(task="d", n=3, **values):
    settings = cases.settings_for(task, rows="chunks", **values) if task == "d" else cases.settings_for(task, **values)
    config = model_config(settings, cases.N_V)
    classes = {"N_C": 2} if task == "classify" else {}
    made = [TASKS[task].init(jax.random.key(seed), config, **classes) for seed in range(n)]
    made = [jax.tree.map(lambda a: 3 * a + 0.1, theta) for theta in made]
    return [Run(theta, config, TOKENIZER, task) for theta in made], settings


def test_the_ensemble_predicts_with_the_mean_of_the_distributions():
    members, settings = runs()
    batch = cases.data_for(settings).validation.batch(0)
    totals = jax.jit(ensemble_totals(members, settings))([run.theta for run in members], batch)
    P = np.mean([d_transformer(batch["x"], run.theta) for run in members], axis=0)
    mask = np.asarray(TASKS["d"].objective.weights(batch), bool)
    targets = np.roll(batch["x"], -1, axis=1)
    B, l = targets.shape
    nats = -np.log(P[targets, np.arange(B)[:, None], np.arange(l)])
    np.testing.assert_allclose(totals.nats, nats[mask].sum(), rtol=1e-5)
    assert (totals.weight, totals.correct) == (mask.sum(), (P.argmax(axis=0) == targets)[mask].sum())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", ["d", "e", "ed", "classify"])
def test_an_ensemble_of_one_model_is_the_model(task):
    (member,), settings = runs(task, n=1)
    batch = cases.data_for(settings).validation.batch(0)
    expected = jax.jit(make_totals(TASKS[task].objective, settings))(member.theta, batch)
    found = jax.jit(ensemble_totals([member, member], settings))([member.theta] * 2, batch)
    chex.assert_trees_all_close(found, expected, rtol=1e-5)


def test_models_that_are_not_alike_are_refused():
    (first, second), _ = runs(n=2)
    (larger,), _ = runs(n=1, d_mlp=16)
    check_alike([first, larger], ["one", "two"])
    for other in ({"tokenizer": CharacterTokenizer(["x"])}, {"labels": ("a",)}, {"task": "e"}):
        with pytest.raises(RunError, match=r"^two: expected the same \w+ as one, got another; name matching runs"):
            check_alike([first, second._replace(**other)], ["one", "two"])
