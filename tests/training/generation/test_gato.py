"""What a model of several modalities names, draws and does, against one column after another by Algorithm 10."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import GatoConfig, d_hidden_state, d_transformer, gato_embedding, init_gato, unembedding
from tests.cases import random_like
from training.data.gato import pendulum
from training.data.gato.sequences import EXTRA_TOKENS, Control, Image
from training.data.records import DataError
from training.data.tokenizers import CharacterTokenizer
from training.evaluation.gato import by_expert, by_nobody, cloned, swing
from training.generation.gato import Gato, of_text
from training.generation.text import Options, answerer_for
from training.runs.directory import Run
from training.tasks import TASKS
from training.tasks.objectives import next_tokens

TOKENIZER = CharacterTokenizer([chr(ord("a") + i) for i in range(26)])
SIZES = {"l_max": 24, "L": 1, "H": 2, "d_e": 8, "d_mlp": 12, "patch": 4, "d_r": 4, "n_groups": 2, "n_places": 2}
CONFIG = GatoConfig(N_V=TOKENIZER.N_V + EXTRA_TOKENS, **SIZES)
PARAMS = random_like(jax.eval_shape(lambda key: init_gato(key, CONFIG), jax.random.key(0)), dtype=jnp.float32)
RUN = Run(PARAMS, CONFIG, TOKENIZER, "gato")
GATO = Gato(RUN)
IMAGES = list(np.random.default_rng(0).uniform(-1, 1, (3, 8, 8, 1)))


def likeliest(columns, first, end):
    """The likeliest of some tokens behind each column of a sequence, which is computed alone and without padding."""
    patches = jnp.moveaxis(jnp.asarray(columns.patches), 0, -1) if len(columns.places) else jnp.zeros((4, 4, 1, 1))
    places = columns.places.T if len(columns.places) else np.zeros((2, 1), int)
    X = gato_embedding(jnp.asarray(columns.read), patches, jnp.asarray(columns.at), *map(jnp.asarray, places), *PARAMS)
    theta = PARAMS.transformer
    P = unembedding(d_hidden_state(X, theta), theta.W_e.T if theta.W_u is None else theta.W_u)
    return first + np.argmax(P[first:end], axis=0)


def next_column(columns, first, end):
    return int(likeliest(columns, first, end)[-1])


def extended(columns, token):
    added = {"x": token, "read": token, "at": -1, "predicted": True}
    return columns._replace(**{name: np.append(getattr(columns, name), value) for name, value in added.items()})


@pytest.mark.thorough
def test_an_image_is_named_by_the_likeliest_token_of_text_again_and_again():
    names = GATO.names(IMAGES)
    for image, name in zip(IMAGES, names, strict=True):
        columns, tokens = GATO.vocabulary.sequence([Image(image)], ends=False), []
        while len(tokens) < 16 and TOKENIZER.eos_token not in tokens:
            tokens.append(next_column(columns, 0, TOKENIZER.N_V))
            columns = extended(columns, tokens[-1])
        assert TOKENIZER.decode(tokens) == name


@pytest.mark.end_to_end
def test_a_drawing_has_only_shades_and_is_the_likeliest_at_temperature_0():
    drawn = GATO.drawings(["two", "seven"], n=5, levels=17, tau=0)
    for text, row in zip(("two", "seven"), drawn, strict=True):
        columns = GATO.vocabulary.to_draw(text)
        before = len(columns.x)
        for shade in row:
            columns = extended(columns, TOKENIZER.N_V + shade)
        found = likeliest(columns, TOKENIZER.N_V, TOKENIZER.N_V + 17)[before - 1 : -1]  # each given those before it
        np.testing.assert_array_equal(found, TOKENIZER.N_V + row)
    sampled = GATO.drawings(["two"] * 40, n=5, levels=17, key=jax.random.key(0))
    assert sampled.min() >= 0
    assert sampled.max() < 17
    assert len(np.unique(sampled)) > 5


def test_an_action_is_the_likeliest_value_behind_the_separator():
    rng = np.random.default_rng(1)
    seen, done = rng.uniform(-2, 2, (2, 3, 3)), rng.uniform(-1, 1, (2, 2, 1))
    actions = GATO.actions(list(seen), list(done))
    assert actions.shape == (2, 1)
    for i in range(2):
        columns = GATO.vocabulary.sequence([Control(seen[i], done[i])], ends=False)
        token = next_column(columns, TOKENIZER.N_V, TOKENIZER.N_V + 1024)
        np.testing.assert_allclose(actions[i, 0], (token - TOKENIZER.N_V + 0.5) / 512 - 1, atol=1e-6)


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match=r"needs 68 columns, but the model reads at most l_max = 24"):
        GATO.drawings(["two"], n=64, levels=17, tau=0)
    with pytest.raises(DataError, match="expected a run of the task gato, got one of the task d"):
        Gato(RUN._replace(task="d"))


@pytest.mark.end_to_end
def test_text_is_continued_by_the_decoder_of_the_text_tokens_alone():
    decoder = of_text(RUN)
    x = jnp.asarray([TOKENIZER.bos_token, 3, 5])
    P, whole = d_transformer(x, decoder.theta), d_transformer(x, PARAMS.transformer)[: TOKENIZER.N_V]
    np.testing.assert_allclose(P, np.asarray(whole) / np.asarray(whole).sum(axis=0), rtol=2e-5)
    ((answer,),) = answerer_for(RUN, Options(tau=0.0, l_gen=6)).answers(["ab"])
    assert set(answer["text"]) <= set("abcdefghijklmnopqrstuvwxyz")


def test_the_loss_is_that_of_the_columns_that_the_mask_names():
    rng = np.random.default_rng(2)
    columns = GATO.vocabulary.sequence([Image(IMAGES[0])], ends=False)
    x = rng.integers(29, 1000, (2, 24)).astype(np.int32)
    at = np.full((2, 24), -1)
    at[1, 1:5] = np.arange(4)
    read = rng.integers(29, 1000, (2, 24)).astype(np.int32)
    batch = {"x": x, "x_read": read, "at": at, "patches": np.stack([columns.patches] * 2)}
    batch |= {"places": np.stack([columns.places] * 2)}
    batch |= {"segment_ids": np.ones((2, 24), np.int32), "loss_mask": rng.random((2, 24)) < 0.3}
    found = TASKS["gato"].objective.losses(PARAMS, batch).nats
    patches, places = jnp.moveaxis(jnp.asarray(columns.patches), 0, -1), map(jnp.asarray, columns.places.T)
    places, expected = list(places), 0.0
    for b in range(2):
        X = gato_embedding(jnp.asarray(read[b]), patches, jnp.asarray(at[b]), *places, *PARAMS)
        theta = PARAMS.transformer
        P = unembedding(d_hidden_state(X, theta), theta.W_e.T if theta.W_u is None else theta.W_u)
        nats = -np.log(np.asarray(P, np.float64)[np.asarray(next_tokens(jnp.asarray(x)))[b], np.arange(24)])
        expected += nats[batch["loss_mask"][b]].sum()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_clone_reads_the_last_five_steps():
    """And where it does what the expert would, the loop ends with the pendulum upright."""
    asked = []

    class Recording:
        config = CONFIG

        def actions(self, observations, actions):
            asked.append((observations[0].copy(), actions[0].copy()))
            return np.stack([pendulum.expert(100 * o[-1:]) for o in observations]) / 2

    steered, expert = swing(cloned(Recording()), n=3), swing(by_expert, n=3)
    np.testing.assert_allclose(steered.cos, expert.cos)
    assert [len(o) for o, _ in asked[:7]] == [1, 2, 3, 4, 5, 5, 5]
    assert [len(a) for _, a in asked[:7]] == [0, 1, 2, 3, 4, 4, 4]
    np.testing.assert_allclose(100 * asked[9][0][:, 0], expert.cos[0, 5:10])
    np.testing.assert_allclose(asked[9][1][:, 0] * 2, expert.torques[0, 5:9])
    assert expert.figures()["upright"] == 1.0
    assert swing(by_nobody, n=3).figures()["upright"] < 0.5
