"""What a model of several modalities names and draws, and its loss, against Algorithm 10 on one sequence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_hidden_state, unembedding
from tests.cases import later, random_like
from tests.training_cases import ALPHABET
from training.data.gato import Vocabulary
from training.evaluation import gato
from training.runs.directory import Run
from training.tasks import TASKS
from training.tasks.gato_embedding import GatoConfig, gato_embedding, init_gato
from training.tasks.objectives import next_tokens

SIZES = {"l_max": 24, "L": 1, "H": 2, "d_e": 8, "d_mlp": 12, "patch": 4, "d_r": 4, "n_groups": 2, "n_places": 2}
CONFIG = GatoConfig(N_V=ALPHABET.N_V + 1025, **SIZES)
SHAPES = later(lambda: jax.eval_shape(lambda key: init_gato(key, CONFIG), jax.random.key(0)))
PARAMS = later(lambda: random_like(SHAPES(), dtype=jnp.float32))
RUN = later(lambda: Run(PARAMS(), CONFIG, ALPHABET, "gato"))
IMAGES = np.random.default_rng(0).uniform(-1, 1, (3, 8, 8, 1))
VOCABULARY = Vocabulary(ALPHABET, CONFIG)


def distributions(x, at, patches):
    """P of a sequence with some patches of an image, computed alone and without padding."""
    places = jnp.asarray([[0, 0, 1, 1], [0, 1, 0, 1]])[:, : len(patches)]
    X = gato_embedding(jnp.asarray(x), jnp.moveaxis(jnp.asarray(patches), 0, -1), jnp.asarray(at), *places, *PARAMS())
    theta = PARAMS().transformer
    return np.asarray(unembedding(d_hidden_state(X, theta), theta.W_e.T if theta.W_u is None else theta.W_u))


def likeliest(columns, answer, first, end):
    """The likeliest of some tokens behind the prompt and behind each token of an answer to it."""
    x, at = np.append(columns.x, answer), np.append(columns.at, np.full(len(answer), -1))
    P = distributions(x.astype(np.int32), at, columns.patches)
    return first + np.argmax(P[first:end, len(columns.x) - 1 :], axis=0)


@pytest.mark.thorough
def test_a_name_is_the_likeliest_text():
    for image, name in zip(IMAGES, gato.names(RUN(), IMAGES), strict=True):
        tokens = ALPHABET.encode(name)
        found = likeliest(VOCABULARY.named(image), tokens, 0, ALPHABET.N_V)
        ended = [ALPHABET.eos_token] * (len(tokens) < gato.LONGEST_NAME)
        np.testing.assert_array_equal(found[: len(tokens) + len(ended)], [*tokens, *ended])


@pytest.mark.end_to_end
def test_a_drawing_has_only_shades_and_is_the_likeliest_at_temperature_0():
    for text, row in zip(("two", "seven"), gato.drawings(RUN(), ["two", "seven"], n=5, tau=0), strict=True):
        found = likeliest(VOCABULARY.drawn(text), ALPHABET.N_V + row, ALPHABET.N_V, ALPHABET.N_V + 17)
        np.testing.assert_array_equal(found[:-1], ALPHABET.N_V + row)
    sampled = gato.drawings(RUN(), ["two"] * 40, n=5, tau=1.0)
    assert sampled.min() >= 0
    assert sampled.max() < 17
    assert len(np.unique(sampled)) > 5


def test_the_loss_is_that_of_the_columns_that_the_mask_names():
    rng, patches = np.random.default_rng(2), VOCABULARY.named(IMAGES[0]).patches
    x = rng.integers(29, 1000, (2, 24)).astype(np.int32)
    at = np.full((2, 24), -1)
    at[1, 1:5] = np.arange(4)
    batch = VOCABULARY.batch([(), ()], 24, 4) | {"x": x, "at": at, "patches": np.stack([patches] * 2)}
    batch |= {"segment_ids": np.ones((2, 24), np.int32), "loss_mask": rng.random((2, 24)) < 0.3}
    found = TASKS["gato"].objective.losses(PARAMS(), batch).nats
    targets, expected = np.asarray(next_tokens(jnp.asarray(x))), 0.0
    for b in range(2):
        nats = -np.log(distributions(x[b], at[b], patches).astype(np.float64)[targets[b], np.arange(24)])
        expected += nats[batch["loss_mask"][b]].sum()
    np.testing.assert_allclose(found, expected, rtol=1e-4)
