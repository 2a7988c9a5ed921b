"""A model that was trained with dropout is used without it: evaluated, generated from, scored and compressed with."""

import jax
import numpy as np
import pytest

from tests.run_cases import LABELS, LETTERS, make_run
from tests.training_cases import TOKEN_TASKS, data_for, settings_for
from training.compression import compress, decompress
from training.generation import Generator, generate, translate
from training.generation.scoring import log_probabilities
from training.generation.text import Options, answerer_for
from training.runs.directory import RunDirectory, load_run
from training.tasks import TASKS
from training.tasks.objectives import make_totals

TEXTS = {"d": "abc", "e": "ab[MASK]c", "ed": "abc", "classify": "abc"}
X, LENGTHS = np.array([[13, 0, 1, 2]]), np.array([4])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By task: a run that was trained without dropout, and one with the same parameters that was trained with it."""
    root = tmp_path_factory.mktemp("dropout")
    paths = {
        task: [make_run(root / f"{task}{rate}", task, dropout=rate) for rate in (0.0, 0.3)] for task in TOKEN_TASKS
    }
    for pair in paths.values():
        assert [RunDirectory(path).description().settings.dropout for path in pair] == [0.0, 0.3]
    return {task: [load_run(path) for path in pair] for task, pair in paths.items()}


@pytest.mark.parametrize("task", TOKEN_TASKS)
def test_answers_are_the_same(runs, task):
    expected, found = (answerer_for(run, Options()).answers([TEXTS[task]]) for run in runs[task])
    assert found == expected


@pytest.mark.parametrize("task", TOKEN_TASKS)
def test_evaluations_are_the_same(runs, task):
    settings = settings_for(task)
    batch = data_for(settings).validation.batch(0)
    batch = {name: np.minimum(array, LETTERS.N_V - 1) if name in "xz" else array for name, array in batch.items()}
    results = []
    for run in runs[task]:
        totals = make_totals(TASKS[task].objective, settings)
        results.append(jax.jit(totals)(run.theta, batch))
    np.testing.assert_array_equal(*results)


def test_tokens_and_scores_are_the_same(runs):
    key = jax.random.key(0)
    drawn = [generate(run.theta, X, lengths=LENGTHS, config=run.config, l_gen=9, key=key) for run in runs["d"]]
    np.testing.assert_array_equal(*drawn)
    scores = [log_probabilities(run.theta, X, lengths=LENGTHS, config=run.config) for run in runs["d"]]
    np.testing.assert_array_equal(*scores)
    for beam_size in (1, 2):
        options = {"lengths": LENGTHS, "l_max": 9, "beam_size": beam_size}
        found, expected = (translate(run.theta, X, config=run.config, **options) for run in runs["ed"])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_texts_are_compressed_and_come_back(runs):
    model = runs["d"][1]
    generator = Generator(model.theta, model.config)
    assert decompress(compress("abc.def", generator, LETTERS), generator, LETTERS) == "abc.def"


def test_classes_have_their_names(runs):
    assert all(run.labels == LABELS for run in runs["classify"])
