"""Digits as sequences of patches, text and values, and rows of a batch of them and of text."""

import sys

import numpy as np
import pytest

from tests.training_cases import ALPHABET, token_store_of
from training.data.batches import NextTokens
from training.data.gato import NAMES, Digits, Modalities, Vocabulary
from training.data.mixtures import Mixture
from training.data.records import DataError
from training.tasks.gato_embedding import GatoConfig

SIZES = {"l_max": 83, "L": 1, "H": 2, "d_e": 8, "d_mlp": 12, "patch": 4, "d_r": 4, "n_groups": 2, "n_places": 2}
VOCABULARY = Vocabulary(ALPHABET, GatoConfig(N_V=ALPHABET.N_V + 1025, **SIZES))
BOS, EOS, FIRST, SEPARATOR = ALPHABET.bos_token, ALPHABET.eos_token, 29, 29 + 1024
PIXELS = np.random.default_rng(0).uniform(-1, 1, (8, 8, 1))
TWO = [19, 22, 14]


def test_of_an_image_and_its_name_the_name_is_predicted():
    columns = VOCABULARY.named(PIXELS, "two")
    np.testing.assert_array_equal(columns.x, [BOS, 0, 0, 0, 0, SEPARATOR, *TWO, EOS])
    np.testing.assert_array_equal(columns.at, [-1, 0, 1, 2, 3, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(columns.predicted, [False] * 6 + [True] * 4)
    np.testing.assert_allclose(columns.patches[1], PIXELS[:4, 4:] / 2)
    np.testing.assert_array_equal(VOCABULARY.named(PIXELS).x, columns.x[:6])
    places = VOCABULARY.batch([[columns, columns]], 30, 8)["places"]
    np.testing.assert_array_equal(places[0], [[0, 0], [0, 1], [1, 0], [1, 1]] * 2)


def test_of_a_name_and_its_drawing_both_are_predicted():
    columns = VOCABULARY.drawn("two", np.array([[0, 16], [1023, 5]]))
    values = [FIRST, FIRST + 16, FIRST + 1023, FIRST + 5]
    np.testing.assert_array_equal(columns.x, [BOS, *TWO, SEPARATOR, *values])
    np.testing.assert_array_equal(columns.predicted, [False, True, True, True, False, True, True, True, True])
    np.testing.assert_array_equal(VOCABULARY.drawn("two").x, columns.x[:5])


def packed(text, l_max):
    store = token_store_of([[BOS, *text, EOS]] * 30, ALPHABET.N_V, n_bytes=1200, part="train")
    return NextTokens(store, l_max=l_max, mode="packed")


@pytest.mark.end_to_end
def test_half_a_batch_is_text_and_half_digits_and_each_drawing_is_that_of_its_name():
    data, train = Modalities(packed([1] * 40, 83), VOCABULARY, batch_size=8, seed=3), Digits.of("train")
    batch = data.batch(7)
    assert np.all(batch["at"][:4] == -1)
    assert np.all(batch["x"][:4] < FIRST)
    target = np.roll(batch["x"], -1, axis=1)
    for row in (4, 5, 6, 7):
        mask, at, x = batch["loss_mask"][row], batch["at"][row], batch["x"][row]
        assert np.all(np.roll(at, -1)[mask] == -1)
        assert np.all(target[row][mask] != SEPARATOR)
        assert np.all(np.diff(at[at >= 0]) == 1)
        drawn = target[row][mask & (target[row] >= FIRST)]
        labels = train.labels[(train.shades == (drawn - FIRST).reshape(8, 8)).all(axis=(1, 2))]
        name = "".join(chr(ord("a") + v) for v in x[1 : x.tolist().index(SEPARATOR)])
        assert {NAMES[label] for label in labels} == {name}
    for name, array in data.batch(7, rows=slice(2, 5)).items():
        np.testing.assert_array_equal(array, batch[name][2:5])
    assert not np.array_equal(batch["x"], data.batch(8)["x"])
    assert len([*data.evaluation_batches()]) == data.n_steps == -(-data.n_examples // 8)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match=r"^--batch-size: expected an even number, .* got 7"):
        Modalities(packed([1] * 90, 83), VOCABULARY, batch_size=7)
    with pytest.raises(DataError, match=r"^--l_max: expected at least 71, for a drawing of a digit, got 70"):
        Modalities(packed([1] * 90, 70), VOCABULARY, batch_size=8)
    with pytest.raises(DataError, match=r"^--data: expected text without weights, .*; leave =WEIGHT out"):
        Modalities(Mixture([packed([1] * 90, 83)], [1.0]), VOCABULARY, batch_size=8)


def test_no_held_out_digit_is_trained_on_and_without_scikit_learn_there_are_none(monkeypatch):
    train, held_out = Digits.of("train"), Digits.of("validation")
    assert (len(train.labels), len(held_out.labels)) == (1437, 360)
    assert (train.pixels.min(), train.pixels.max()) == (-1, 1)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"scikit-learn's, which is not installed: pip install -e '.*\[skl"):
        Digits.of("train")
