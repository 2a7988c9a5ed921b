"""Elements of several modalities as one sequence, rows of a batch of them, and the pendulum."""

import math
import sys

import numpy as np
import pytest

from algorithms import GatoConfig
from tests.training_cases import token_store_of
from training.data.batches import NextTokens
from training.data.gato import digits, pendulum
from training.data.gato.batches import Modalities
from training.data.gato.sequences import EXTRA_TOKENS, Control, Discrete, Image, Text, Vocabulary
from training.data.mixtures import Mixture
from training.data.records import DataError
from training.data.tokenizers import CharacterTokenizer

TOKENIZER = CharacterTokenizer([chr(ord("a") + i) for i in range(26)])
SIZES = {"l_max": 83, "L": 1, "H": 2, "d_e": 8, "d_mlp": 12, "patch": 4, "d_r": 4, "n_groups": 2, "n_places": 2}
VOCABULARY = Vocabulary(TOKENIZER, GatoConfig(N_V=TOKENIZER.N_V + EXTRA_TOKENS, **SIZES))
BOS, EOS, FIRST, SEPARATOR = TOKENIZER.bos_token, TOKENIZER.eos_token, 29, 29 + 1024
PIXELS = np.random.default_rng(0).uniform(-1, 1, (8, 4, 1))


def letters(text):
    return [ord(letter) - ord("a") for letter in text]


def test_an_image_and_its_name_are_patches_and_tokens_of_which_the_name_is_predicted():
    columns = VOCABULARY.sequence([Image(PIXELS), Text("two")], ends=True)
    np.testing.assert_array_equal(columns.x, [BOS, 0, 0, SEPARATOR, *letters("two"), EOS])
    np.testing.assert_array_equal(columns.at, [-1, 0, 1, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(columns.predicted, [False] * 4 + [True] * 4)
    np.testing.assert_allclose(columns.patches, PIXELS.reshape(2, 4, 4, 1) / 2, rtol=1e-6)
    np.testing.assert_array_equal(columns.places, [[0, 0], [1, 0]])
    asked = VOCABULARY.sequence([Image(PIXELS)], ends=False)
    np.testing.assert_array_equal(asked.x, columns.x[:4])


def test_digits_without_scikit_learn_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"scikit-learn's, which is not installed: pip install -e '.*\[skl"):
        digits.load("train")


def test_a_name_and_its_drawing_are_tokens_of_text_and_of_values():
    columns = VOCABULARY.sequence([Text("two"), Discrete(np.array([[0, 16], [1023, 5]]))], ends=True)
    values = [FIRST, FIRST + 16, FIRST + 1023, FIRST + 5]
    np.testing.assert_array_equal(columns.x, [BOS, *letters("two"), SEPARATOR, *values])
    np.testing.assert_array_equal(columns.predicted, [False, True, True, True, False, True, True, True, True])
    np.testing.assert_array_equal(VOCABULARY.to_draw("two").x, columns.x[:5])


def test_control_is_observations_a_separator_and_the_action_which_alone_is_predicted():
    observations, actions = np.array([[0.0, -1.0, 256.0], [1.0, 0.5, -8.0]]), np.array([[-1.0], [1.0]])
    columns = VOCABULARY.sequence([Control(observations, actions)], ends=True)

    def token(value):  # the μ-law and 1,024 bins, by hand
        y = math.copysign(math.log(100 * abs(value) + 1) / math.log(25601), value)
        return FIRST + min(1023, math.floor((y + 1) / 2 * 1024))

    seen = [[token(v) for v in row] for row in observations.tolist()]
    expected = [BOS, *seen[0], SEPARATOR, FIRST, *seen[1], SEPARATOR, FIRST + 1023]
    np.testing.assert_array_equal(columns.x, expected)
    np.testing.assert_array_equal(np.flatnonzero(columns.predicted), [5, 10])
    asked = VOCABULARY.sequence([Control(observations, actions[:1])], ends=False)
    np.testing.assert_array_equal(asked.x, expected[:-1])
    first = VOCABULARY.sequence([Control(observations[:1], np.zeros((0, 1)))], ends=False)
    np.testing.assert_array_equal(first.x, expected[:5])
    np.testing.assert_array_equal(columns.read, expected)
    disturbed = VOCABULARY.sequence([Control(observations, actions, -actions)], ends=True)
    np.testing.assert_array_equal(disturbed.x, expected)
    np.testing.assert_array_equal(disturbed.read, [*expected[:5], FIRST + 1023, *expected[6:10], FIRST])


def test_tokens_of_control_give_the_values_back():
    values = np.linspace(-8, 8, 333)
    back = VOCABULARY.observation_of(VOCABULARY.observed(values))
    assert np.all(np.abs(back - values) <= (np.abs(values) + 0.01) * 0.01)
    actions = np.linspace(-1, 1, 333)
    assert np.max(np.abs(VOCABULARY.action_of(VOCABULARY.actions(actions)) - actions)) <= 1 / 1024 + 1e-6


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([Text("a"), Image(PIXELS)], r"^modalities: expected one of these orders: text; .* got text, then an image"),
        ([Discrete(np.array([1])), Text("two")], r"got discrete values, then text"),
        ([Image(PIXELS), Discrete(np.array([1]))], r"got an image, then discrete values"),
        ([Image(PIXELS)], r"got an image$"),
        ([], r"got nothing"),
        ([Text("two"), Discrete(np.array([0.5]))], r"^discrete values: expected integers from 0 to 1023, got float64"),
        ([Text("two"), Discrete(np.array([-1, 3]))], r"expected integers from 0 to 1023, got -1 to 3; "),
        ([Text("two"), Discrete(np.array([1024]))], r"expected integers from 0 to 1023, got 1024 to 1024"),
        ([Image(PIXELS[:, :3]), Text("two")], r"patches of side 4 tile, got 8 x 3"),
        ([Image(np.zeros((12, 4, 1))), Text("two")], r"at most 2 rows and columns of patches.* got 3 x 1"),
        ([Image(np.full((4, 4, 1), np.nan)), Text("two")], r"finite numbers from -1 to 1"),
        ([Image(np.zeros((4, 4, 3))), Text("two")], r"^image: expected \[height, width, 1 channels\], got \[4, 4, 3\]"),
        ([Control(np.array([[np.inf]]), np.array([[0.0]]))], r"finite numbers from -256 to 256"),
        ([Control(np.array([[300.0]]), np.array([[0.0]]))], r"finite numbers from -256 to 256"),
        ([Control(np.array([[0.0]]), np.array([[1.5]]))], r"finite numbers from -1 to 1"),
        ([Control(np.zeros((3, 2)), np.zeros((1, 1)))], r"^actions: expected one for each of the 3 observations"),
    ],
)
def test_what_no_model_was_given_is_refused(elements, message):
    with pytest.raises(ValueError, match=message):
        VOCABULARY.sequence(elements, ends=True)


def packed(store, l_max):
    return NextTokens(store, l_max=l_max, mode="packed")


@pytest.fixture(scope="module")
def data():
    texts = [[BOS, *([i % 26] * 40), EOS] for i in range(30)]
    store = token_store_of(texts, TOKENIZER.N_V, n_bytes=1200, part="train")
    return Modalities(packed(store, 83), VOCABULARY, batch_size=8, seed=3)


@pytest.mark.end_to_end
def test_a_batch_has_text_digits_and_control_and_the_loss_is_on_text_and_actions(data):
    batch = data.batch(0)
    assert {len(array) for array in batch.values()} == {8}
    assert np.all(batch["at"][:3] == -1)
    assert np.all(batch["x"][:3] < FIRST)
    target = np.roll(batch["x"], -1, axis=1)
    np.testing.assert_array_equal(batch["x_read"][:5], batch["x"][:5])
    for row in (3, 4):
        mask, at = batch["loss_mask"][row], batch["at"][row]
        assert np.all(np.roll(at, -1)[mask] == -1)
        assert np.all(target[row][mask] != SEPARATOR)
        assert np.all(np.diff(at[at >= 0]) == 1)
        drawn = target[row][mask & (target[row] >= FIRST)]
        assert len(drawn) == 64
        assert np.all(drawn < FIRST + 17)
    for row in (5, 6, 7):  # three parts of five steps, 26 columns each
        mask = batch["loss_mask"][row]
        assert mask.sum() == 15
        assert np.all(batch["x"][row][mask] == SEPARATOR)
        assert np.all(batch["x"][row][[0, 26, 52]] == BOS)
        np.testing.assert_array_equal(batch["segment_ids"][row][:78], np.repeat([1, 2, 3], 26))
        different = batch["x_read"][row] != batch["x"][row]
        assert not np.any(different & ~np.roll(mask, 1))  # in actions alone
        assert 3 <= different.sum() <= 14


def test_a_drawing_is_that_of_its_name(data):
    """Row 3 begins with a name and its drawing: the shades are those of an image with this label."""
    train = digits.load("train")
    x = data.batch(5)["x"][3]
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
    with pytest.raises(DataError, match=r"^--batch-size: expected a multiple of 8, .* got 6"):
        Modalities(packed(store, 83), VOCABULARY, batch_size=6)
    with pytest.raises(DataError, match=r"^--l_max: expected at least 71, for a drawing of a digit, got 70"):
        Modalities(packed(store, 70), VOCABULARY, batch_size=8)
    with pytest.raises(DataError, match=r"^--data: expected text without weights, .*; leave =WEIGHT out"):
        Modalities(Mixture([packed(store, 83)], [1.0]), VOCABULARY, batch_size=8)


def test_no_held_out_digit_is_trained_on():
    train, held_out = digits.load("train"), digits.load("validation")
    assert (len(train.labels), len(held_out.labels)) == (1437, 360)
    assert train.pixels.min() == -1
    assert train.pixels.max() == 1


def test_the_pendulum_moves_as_a_rod_does():
    """By small steps of θ'' = (3g/2) sin θ + 3u, of which the larger ones are near."""
    state, torque = np.array([[2.0, 0.3]]), np.array([0.7])
    theta, omega = 2.0, 0.3
    for _ in range(500):
        omega += 0.05 / 500 * (15 * math.sin(theta) + 3 * 0.7)
        theta += 0.05 / 500 * omega
    np.testing.assert_allclose(pendulum.moved(state, torque), [[theta, omega]], atol=0.03)
    np.testing.assert_array_equal(pendulum.moved(state, np.array([9.0])), pendulum.moved(state, np.array([2.0])))


def test_the_model_reads_the_torque_that_acted_in_whole_numbers_and_predicts_the_experts():
    """What acted moves the pendulum, so that it and what is observed agree; it tells little of what is asked next."""
    episodes = pendulum.expert_episodes(100, seed=6)
    flat = episodes.observations.reshape(-1, 3)
    np.testing.assert_array_equal(episodes.torques.ravel(), pendulum.expert(flat))
    assert set(np.unique(episodes.acted)) == {-2, -1, 0, 1, 2}
    angle = np.arctan2(episodes.observations[..., 1], episodes.observations[..., 0])
    state = np.stack([angle, episodes.observations[..., 2]], axis=-1)[:, :-1].reshape(-1, 2)
    moved = pendulum.moved(state, episodes.acted[:, :-1].ravel())
    np.testing.assert_allclose(pendulum.observed(moved), episodes.observations[:, 1:].reshape(-1, 3), atol=1e-12)
    next_ones = episodes.torques[:, 1:]
    assert np.mean(next_ones == episodes.acted[:, :-1]) < 0.45 < 0.6 < np.mean(next_ones == episodes.torques[:, :-1])


def test_a_model_reads_observations_in_hundreds(data):
    """So the bins around upright are a fiftieth wide: those of sin θ itself would be a hundred times as fine."""
    cos, sin, _ = 100 * VOCABULARY.observation_of(data.batch(0)["x"][5:, 1:4]).T
    np.testing.assert_allclose(cos**2 + sin**2, 1, atol=0.05)
    bins = VOCABULARY.observed(np.array([-0.05, -0.01, 0.01, 0.05]) / 100)
    np.testing.assert_array_equal(np.diff(bins), [2, 1, 2])


def test_the_expert_swings_every_pendulum_up_and_holds_it():
    episodes = pendulum.expert_episodes(50, seed=5, steps=200, disturbance=0.0)
    assert episodes.observations[:, 150:, 0].min() > 0.99
    assert set(np.unique(episodes.torques)) <= {-2, -1, 0, 1, 2}
    again = pendulum.expert_episodes(50, seed=5, steps=200, disturbance=0.0)
    np.testing.assert_array_equal(episodes.rewards, again.rewards)
