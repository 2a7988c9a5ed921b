"""Elements of several modalities as one sequence, and rows of a batch of them."""

import sys

import numpy as np
import pytest

from tests.training_cases import token_store_of
from training.data.batches import NextTokens
from training.data.gato import digits
from training.data.gato.batches import Modalities
from training.data.gato.sequences import EXTRA_TOKENS, Vocabulary
from training.data.mixtures import Mixture
from training.data.records import DataError
from training.data.tokenizers import CharacterTokenizer
from training.tasks.gato_embedding import GatoConfig

TOKENIZER = CharacterTokenizer([chr(ord("a") + i) for i in range(26)])
SIZES = {"l_max": 83, "L": 1, "H": 2, "d_e": 8, "d_mlp": 12, "patch": 4, "d_r": 4, "n_groups": 2, "n_places": 2}
VOCABULARY = Vocabulary(TOKENIZER, GatoConfig(N_V=TOKENIZER.N_V + EXTRA_TOKENS, **SIZES))
BOS, EOS, FIRST, SEPARATOR = TOKENIZER.bos_token, TOKENIZER.eos_token, 29, 29 + 1024
PIXELS = np.random.default_rng(0).uniform(-1, 1, (8, 4, 1))


def letters(text):
    return [ord(letter) - ord("a") for letter in text]


def test_an_image_and_its_name_are_patches_and_tokens_of_which_the_name_is_predicted():
    columns = VOCABULARY.named(PIXELS, "two")
    np.testing.assert_array_equal(columns.x, [BOS, 0, 0, SEPARATOR, *letters("two"), EOS])
    np.testing.assert_array_equal(columns.at, [-1, 0, 1, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(columns.predicted, [False] * 4 + [True] * 4)
    np.testing.assert_allclose(columns.patches, PIXELS.reshape(2, 4, 4, 1) / 2, rtol=1e-6)
    np.testing.assert_array_equal(columns.places, [[0, 0], [1, 0]])
    np.testing.assert_array_equal(VOCABULARY.named(PIXELS).x, columns.x[:4])


def test_digits_without_scikit_learn_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"scikit-learn's, which is not installed: pip install -e '.*\[skl"):
        digits.load("train")


def test_a_name_and_its_drawing_are_tokens_of_text_and_of_values():
    columns = VOCABULARY.drawn("two", np.array([[0, 16], [1023, 5]]))
    values = [FIRST, FIRST + 16, FIRST + 1023, FIRST + 5]
    np.testing.assert_array_equal(columns.x, [BOS, *letters("two"), SEPARATOR, *values])
    np.testing.assert_array_equal(columns.predicted, [False, True, True, True, False, True, True, True, True])
    np.testing.assert_array_equal(VOCABULARY.drawn("two").x, columns.x[:5])


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (PIXELS[:, :3], r"patches of side 4 tile, got 8 x 3"),
        (np.zeros((12, 4, 1)), r"at most 2 rows and columns of patches.* got 3 x 1"),
        (np.full((4, 4, 1), np.nan), r"finite numbers from -1 to 1"),
    ],
)
def test_images_that_are_not_patches_are_refused(pixels, message):
    with pytest.raises(ValueError, match=message):
        VOCABULARY.named(pixels)


def packed(store, l_max):
    return NextTokens(store, l_max=l_max, mode="packed")


@pytest.fixture(scope="module")
def data():
    texts = [[BOS, *([i % 26] * 40), EOS] for i in range(30)]
    store = token_store_of(texts, TOKENIZER.N_V, n_bytes=1200, part="train")
    return Modalities(packed(store, 83), VOCABULARY, batch_size=8, seed=3)


@pytest.mark.end_to_end
def test_a_batch_has_text_and_digits_and_the_loss_is_on_text_and_drawings(data):
    batch = data.batch(0)
    assert {len(array) for array in batch.values()} == {8}
    assert np.all(batch["at"][:4] == -1)
    assert np.all(batch["x"][:4] < FIRST)
    target = np.roll(batch["x"], -1, axis=1)
    for row in (4, 5, 6, 7):
        mask, at = batch["loss_mask"][row], batch["at"][row]
        assert np.all(np.roll(at, -1)[mask] == -1)
        assert np.all(target[row][mask] != SEPARATOR)
        assert np.all(np.diff(at[at >= 0]) == 1)
        drawn = target[row][mask & (target[row] >= FIRST)]
        assert len(drawn) == 64
        assert np.all(drawn < FIRST + 17)


def test_a_drawing_is_that_of_its_name(data):
    """Row 4 begins with a name and its drawing: the shades are those of an image with this label."""
    train, held_out = digits.load("train"), digits.load("validation")
    assert (len(train.labels), len(held_out.labels)) == (1437, 360)
    assert (train.pixels.min(), train.pixels.max()) == (-1, 1)
    x = data.batch(5)["x"][4]
    end = x.tolist().index(SEPARATOR)
    name = "".join(chr(ord("a") + v) for v in x[1:end])
    shades = (x[end + 1 : end + 65] - FIRST).reshape(8, 8)
    labels = train.labels[(train.shades == shades).all(axis=(1, 2))]
    assert len(labels)
    assert set(labels) == {digits.NAMES.index(name)}


def test_the_batch_of_a_step_depends_on_seed_and_step_alone(data):
    for name, array in data.batch(7).items():
        np.testing.assert_array_equal(array, data.batch(7)[name])
        np.testing.assert_array_equal(array[2:5], data.batch(7, rows=slice(2, 5))[name])
    assert not np.array_equal(data.batch(7)["x"], data.batch(8)["x"])
    held_out = list(data.evaluation_batches())
    assert len(held_out) == -(-data.n_examples // 8)


def test_sizes_that_do_not_fit_are_refused():
    store = token_store_of([[BOS, *([1] * 90), EOS]] * 3, TOKENIZER.N_V, n_bytes=99, part="train")
    with pytest.raises(DataError, match=r"^--batch-size: expected an even number, .* got 7"):
        Modalities(packed(store, 83), VOCABULARY, batch_size=7)
    with pytest.raises(DataError, match=r"^--l_max: expected at least 71, for a drawing of a digit, got 70"):
        Modalities(packed(store, 70), VOCABULARY, batch_size=8)
    with pytest.raises(DataError, match=r"^--data: expected text without weights, .*; leave =WEIGHT out"):
        Modalities(Mixture([packed(store, 83)], [1.0]), VOCABULARY, batch_size=8)
