"""What a model of several modalities names and draws, against one column after another by Algorithm 10."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_hidden_state, d_transformer, unembedding
from tests.cases import later, random_like
from training.data.gato.sequences import EXTRA_TOKENS
from training.data.records import DataError
from training.data.tokenizers import CharacterTokenizer
from training.evaluation.gato import printed
from training.generation.gato import Gato, of_text
from training.generation.text import Options, answerer_for
from training.runs.directory import Run
from training.tasks import TASKS
from training.tasks.gato_embedding import GatoConfig, gato_embedding, init_gato
from training.tasks.objectives import next_tokens

TOKENIZER = CharacterTokenizer([chr(ord("a") + i) for i in range(26)])
SIZES = {"l_max": 24, "L": 1, "H": 2, "d_e": 8, "d_mlp": 12, "patch": 4, "d_r": 4, "n_groups": 2, "n_places": 2}
CONFIG = GatoConfig(N_V=TOKENIZER.N_V + EXTRA_TOKENS, **SIZES)
SHAPES = later(lambda: jax.eval_shape(lambda key: init_gato(key, CONFIG), jax.random.key(0)))
PARAMS = later(lambda: random_like(SHAPES(), dtype=jnp.float32))
RUN = later(lambda: Run(PARAMS(), CONFIG, TOKENIZER, "gato"))
GATO = later(lambda: Gato(RUN()))
IMAGES = list(np.random.default_rng(0).uniform(-1, 1, (3, 8, 8, 1)))


def distributions(x, at, columns):
    """P of a sequence with the patches of others, which is computed alone and without padding."""
    patches = jnp.moveaxis(jnp.asarray(columns.patches), 0, -1)
    X = gato_embedding(jnp.asarray(x), patches, jnp.asarray(at), *map(jnp.asarray, columns.places.T), *PARAMS())
    theta = PARAMS().transformer
    return np.asarray(unembedding(d_hidden_state(X, theta), theta.W_e.T if theta.W_u is None else theta.W_u))


def likeliest(columns, first, end):
    """The likeliest of some tokens behind each column of a sequence."""
    return first + np.argmax(distributions(columns.x, columns.at, columns)[first:end], axis=0)


def extended(columns, token):
    added = {"x": token, "at": -1, "predicted": True}
    return columns._replace(**{name: np.append(getattr(columns, name), value) for name, value in added.items()})


@pytest.mark.thorough
def test_an_image_is_named_by_the_likeliest_token_of_text_again_and_again():
    names = GATO().names(IMAGES)
    for image, name in zip(IMAGES, names, strict=True):
        columns, tokens = GATO().vocabulary.named(image), []
        while len(tokens) < 16 and TOKENIZER.eos_token not in tokens:
            tokens.append(int(likeliest(columns, 0, TOKENIZER.N_V)[-1]))
            columns = extended(columns, tokens[-1])
        assert TOKENIZER.decode(tokens) == name


@pytest.mark.end_to_end
def test_a_drawing_has_only_shades_and_is_the_likeliest_at_temperature_0():
    drawn = GATO().drawings(["two", "seven"], n=5, levels=17, tau=0)
    for text, row in zip(("two", "seven"), drawn, strict=True):
        columns = GATO().vocabulary.drawn(text)
        before = len(columns.x)
        for shade in row:
            columns = extended(columns, TOKENIZER.N_V + shade)
        found = likeliest(columns, TOKENIZER.N_V, TOKENIZER.N_V + 17)[before - 1 : -1]  # each given those before it
        np.testing.assert_array_equal(found, TOKENIZER.N_V + row)
    sampled = GATO().drawings(["two"] * 40, n=5, levels=17, key=jax.random.key(0))
    assert sampled.min() >= 0
    assert sampled.max() < 17
    assert len(np.unique(sampled)) > 5


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match=r"needs 68 columns, but the model reads at most l_max = 24"):
        GATO().drawings(["two"], n=64, levels=17, tau=0)
    with pytest.raises(DataError, match="expected a run of the task gato, got one of the task d"):
        Gato(RUN()._replace(task="d"))


@pytest.mark.end_to_end
def test_text_is_continued_by_the_decoder_of_the_text_tokens_alone():
    decoder = of_text(RUN())
    x = jnp.asarray([TOKENIZER.bos_token, 3, 5])
    P, whole = d_transformer(x, decoder.theta), d_transformer(x, PARAMS().transformer)[: TOKENIZER.N_V]
    np.testing.assert_allclose(P, np.asarray(whole) / np.asarray(whole).sum(axis=0), rtol=2e-5)
    ((answer,),) = answerer_for(RUN(), Options(tau=0.0, l_gen=6)).answers(["ab"])
    assert set(answer["text"]) <= set("abcdefghijklmnopqrstuvwxyz")


def test_the_loss_is_that_of_the_columns_that_the_mask_names():
    rng = np.random.default_rng(2)
    columns = GATO().vocabulary.named(IMAGES[0])
    x = rng.integers(29, 1000, (2, 24)).astype(np.int32)
    at = np.full((2, 24), -1)
    at[1, 1:5] = np.arange(4)
    batch = {"x": x, "at": at, "patches": np.stack([columns.patches] * 2)}
    batch |= {"places": np.stack([columns.places] * 2)}
    batch |= {"segment_ids": np.ones((2, 24), np.int32), "loss_mask": rng.random((2, 24)) < 0.3}
    found = TASKS["gato"].objective.losses(PARAMS(), batch).nats
    targets, expected = np.asarray(next_tokens(jnp.asarray(x))), 0.0
    for b in range(2):
        nats = -np.log(distributions(x[b], at[b], columns).astype(np.float64)[targets[b], np.arange(24)])
        expected += nats[batch["loss_mask"][b]].sum()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_drawings_are_printed_side_by_side():
    shades = np.zeros((2, 8, 8), int)
    shades[0, 0, :5], shades[1, 7, 7] = (0, 4, 8, 12, 16), 16
    lines = printed(shades).splitlines()[1:]
    assert lines == [" .:*#", *[""] * 6, " " * 17 + "#"]
