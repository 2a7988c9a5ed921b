"""A text that begins as an earlier one goes on from its keys and values, to the same tokens and numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import GOPHER, PAPER, DTransformerConfig, d_transformer
from algorithms.lines import Attention, Embedding, Experts, RMSNorm, Rotary
from tests.cases import assert_drawn, later, padded, random_theta
from training.generation import Generator, decoding, prefixes, prompts
from training.generation.prefixes import Prefixes

pytestmark = pytest.mark.sampled(1, tests=4)

N_V, L_MAX = 17, 83
LINES = [Attention(positions=Rotary(base=100.0), biases="qkv", window=w, cap=3.0, scale=0.3) for w in (None, 5)]
VARIANT = PAPER.but(embedding=Embedding(positions=None), attention=tuple(LINES), norm=RMSNorm(), shared_layers=2)
SIZES = {"N_V": N_V, "l_max": L_MAX, "d_mlp": 13, "d_mid": 7}
CONFIGS = {
    "paper": DTransformerConfig(**SIZES, L=2, H=3, d_e=11, d_attn=5),
    "windows": DTransformerConfig(**SIZES, L=4, H=4, H_kv=2, d_e=11, d_attn=6, variant=VARIANT),
    "distances": DTransformerConfig(**SIZES, L=2, H=3, d_e=12, d_attn=5, variant=GOPHER),
    "experts": DTransformerConfig(N_V=N_V, l_max=L_MAX, L=2, H=2, d_e=12, d_mlp=7, variant=PAPER.but(mlp=Experts(n=4))),
}
TEXTS = np.random.default_rng(0).integers(N_V, size=(3, L_MAX))
KEY = later(lambda: jax.random.key(7))


@pytest.fixture
def few_at_once(monkeypatch):
    monkeypatch.setattr(prefixes, "FEW", 4)
    monkeypatch.setattr(prefixes, "MANY", 7)


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


@functools.cache
def theta_of(name):
    return random_theta(CONFIGS[name])


def generator(name, most=1 << 20):
    return Generator(theta_of(name), CONFIGS[name], prefixes=Prefixes(most))


def tokens(generator, rows, **options):
    x, lengths = padded(rows)
    return np.asarray(generator.generate(x, lengths=lengths, **{"l_gen": 9, "tau": 1.0, "key": KEY()} | options))


def plain(name, rows, **options):
    return tokens(Generator(theta_of(name), CONFIGS[name]), rows, **options)


def columns_read(monkeypatch):
    """How many columns are read, padding included."""
    read, original = [], prefixes.read_more

    def counting(theta, caches, x, n, **options):
        read.append(x.size)
        return original(theta, caches, x, n, **options)

    monkeypatch.setattr(prefixes, "read_more", counting)
    return read


@pytest.mark.sampled(2)
@pytest.mark.end_to_end
@pytest.mark.usefixtures("few_at_once")
def test_keys_and_values_are_those_of_one_reading(name):
    model = generator(name)
    whole = TEXTS[0, :71]
    for length in (18, 19, 30, 71):  # by some columns, and by many
        state = prompts.read(model, [whole[:length]], more=1).state
    assert model.prefixes.found == 17 + 18 + 29
    P, _ = jax.jit(decoding.step)(model.weights, None, state)
    expected = d_transformer(jnp.asarray(whole), theta_of(name))[:, -1]
    np.testing.assert_allclose(P[:, 0], expected, rtol=0, atol=1e-14)


@pytest.mark.sampled(1)
@pytest.mark.end_to_end
@pytest.mark.usefixtures("few_at_once")
def test_some_of_a_batch_are_known_in_part_and_the_tokens_are_the_same(name):
    model = generator(name)
    tokens(model, [TEXTS[0, :40]])
    rows = [TEXTS[1, :33], np.concatenate([TEXTS[0, :25], TEXTS[2, :20]]), TEXTS[0, :40], TEXTS[2, :3], TEXTS[0, :17]]
    assert_drawn(theta_of(name), rows, tokens(model, rows), 1.0, KEY(), L_MAX)
    assert model.prefixes.found == 25 + 39 + 16


@pytest.mark.sampled(2)
@pytest.mark.end_to_end
def test_what_was_generated_is_not_read_again(name, monkeypatch):
    """A conversation: each turn begins with all of those before it."""
    model, text = generator(name), TEXTS[0, :20]
    begun = model.begin(text[None], lengths=np.array([20]), l_gen=12, key=KEY(), tau=1.0)
    begun.extend(12)
    begun.keep(0)
    more = np.concatenate([text, begun.tokens[0], TEXTS[1, :6]])
    read = columns_read(monkeypatch)
    assert_drawn(theta_of(name), [more], tokens(model, [more]), 1.0, KEY(), L_MAX)
    assert model.prefixes.found == 20 + 12 - 1  # the last token was drawn, but not read
    assert read == [prefixes.FEW]


@pytest.mark.sampled(2)
@pytest.mark.end_to_end
def test_a_text_up_to_the_end_of_the_context_and_beyond(name):
    model, whole = generator(name), np.concatenate(TEXTS)
    rows = [whole[:L_MAX]]
    tokens(model, [whole[: L_MAX - 9]], l_gen=1)
    np.testing.assert_array_equal(tokens(model, rows, l_gen=5, sliding=True), plain(name, rows, l_gen=5, sliding=True))
    state = prompts.read(model, rows, more=1).state
    assert np.isfinite(np.asarray(state.caches[0].V)).all()


@pytest.mark.end_to_end
def test_the_oldest_make_room_and_what_begins_a_longer_text_needs_none():
    model = generator("paper")
    tokens(model, [TEXTS[0, :33]])
    of_one = model.prefixes.nbytes
    model.prefixes.max_bytes = 2 * of_one
    for row in (1, 0, 2):  # the first is used again, so the second goes
        tokens(model, [TEXTS[row, :33]])
    assert model.prefixes.nbytes == 2 * of_one
    before = model.prefixes.found
    tokens(model, [TEXTS[1, :33]])
    assert model.prefixes.found == before
    small, whole, alone = generator("paper", most=of_one - 1), generator("paper"), generator("paper")
    tokens(small, [TEXTS[0, :33]])
    assert small.prefixes.nbytes == 0
    for length in (33, 49, 40):
        tokens(whole, [TEXTS[0, :length]])
    tokens(alone, [TEXTS[0, :49]])
    assert whole.prefixes.nbytes == alone.prefixes.nbytes
    room = Prefixes.for_texts(2, theta_of("paper"), CONFIGS["paper"])
    full = Generator(theta_of("paper"), CONFIGS["paper"], prefixes=room)
    for row in range(3):
        tokens(full, [TEXTS[row]], l_gen=1)
    assert room.nbytes == room.max_bytes
