"""What is changed while tokens are generated is what is changed in one pass over the finished text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import DTransformerConfig, d_transformer
from algorithms.inside import at, intervene
from tests import cases, family_cases
from training.generation import Generator
from training.generation.requests import Request

pytestmark = pytest.mark.sampled(1, tests=2)

PROMPTS = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 0, 0, 0, 0], [8, 0, 0, 0, 0, 0, 0]])
LENGTHS = np.array([7, 3, 1])
KEY = cases.later(lambda: jax.random.key(0))
VARIANTS = [
    "LLAMA",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (*family_cases.NAMED, "PAPER", "GPT2")
        if name not in ("LLAMA", *family_cases.RECURRENT)
    ),
]


def model(name, **changes):
    if name in family_cases.EVERY:
        config = family_cases.config_of(name, **changes)
    else:
        config = DTransformerConfig(**{**family_cases.SIZES, "variant": getattr(algorithms, name), **changes})
    return family_cases.theta_of(config), config


def generated(generator, l_gen=6, **options):
    begun = generator.begin(PROMPTS, lengths=LENGTHS, l_gen=l_gen, key=KEY(), tau=0.0, **options)
    begun.extend(l_gen)
    return begun


def steer(X):
    return X + 3 * jnp.sin(jnp.arange(10.0)).reshape(10, *(1,) * (X.ndim - 1))


def assert_likeliest(texts, counts, theta, changes):
    """Assert that the last `counts` tokens of each text are the likeliest in one pass with the changes."""
    x, _ = cases.padded(texts)
    likeliest = np.argmax(intervene(d_transformer, changes)(x, theta), axis=0)
    for row, text, n in zip(likeliest, texts, counts, strict=True):
        np.testing.assert_array_equal(row[len(text) - n - 1 : len(text) - 1], text[len(text) - n :])


def texts_of(prompts, begun):
    return [np.concatenate([x, y[start:]]) for x, y, start in zip(prompts, begun.tokens, begun.starts, strict=True)]


CHANGES = {
    "a direction": {at("X@8", layer=1): steer},
    "a head": {at("Y@2", layer=1, head=3): lambda Y: -5 * Y},
    "scores": {at("S@4", layer=0): lambda S: -S},
    "attention": {at("A", head=2): lambda A: A * A},
    "what attention reads": {at("X_tilde@5", layer=2): lambda X: -X, at("Q", layer=0): lambda Q: 3 * Q},
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "changes", [pytest.param(c, marks=pytest.mark.end_to_end if c in ("a head", "attention") else ()) for c in CHANGES]
)
def test_steered_from_the_cache_is_steered_algorithm_14(name, changes):
    theta, config = model(name)
    plain, found = generated(Generator(theta, config)), generated(Generator(theta, config, changes=CHANGES[changes]))
    texts = texts_of([x[:l] for x, l in zip(PROMPTS, LENGTHS, strict=True)], found)
    assert_likeliest(texts, [6] * 3, theta, CHANGES[changes])
    assert not np.allclose(found.log_p, plain.log_p)


@pytest.mark.thorough
def test_changes_go_on_in_larger_caches_and_windows():
    theta, config = model("LLAMA", l_max=90)
    changes = {at("X@8", layer=0): steer}
    prompts = [x[:l] for x, l in zip(PROMPTS, LENGTHS, strict=True)]
    begun = generated(Generator(theta, config, changes=changes), l_gen=75)  # 64 slots are not enough
    assert_likeliest(texts_of(prompts, begun), [75] * 3, theta, changes)
    theta, config = model("LLAMA", l_max=8)
    begun = generated(Generator(theta, config, changes=changes), sliding=True, l_gen=9)
    read = 1 + config.l_max - begun.left  # tokens of each window, and the one behind it
    windows = [text[-n:] for text, n in zip(texts_of(prompts, begun), read, strict=True)]
    assert_likeliest(windows, [1] * 3, theta, changes)


@pytest.mark.thorough
def test_who_joins_is_steered_as_the_others():
    """As the server generates."""
    theta, config = model("LLAMA", l_max=40)
    changes = {at("Y@2", layer=1, head=3): 0.0}
    begun = generated(Generator(theta, config, changes=changes), l_gen=3)
    new, lengths = np.array([[7, 2, 0], [4, 4, 4]]), np.array([2, 3])
    keys = jax.random.split(jax.random.key(5), 2)
    both = [Request(x[:l], key, 8, {"tau": 0.0}) for x, l, key in zip(new, lengths, keys, strict=True)]
    begun.join(both, keep=[2, 3, 0, 4])
    begun.extend(8)
    texts = texts_of([PROMPTS[2, :1], new[0, :2], PROMPTS[0], new[1]], begun)
    assert_likeliest(texts, 8 - begun.starts, theta, changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({at("X@8", layer=0, token=2): 0.0}, r"expected no token while text is generated"),
        ({at("A", context=1): 0.0}, "expected no context while text is generated, .* got 1; leave it out"),
        ({at("V", layer=0): 0.0}, "V.layer=0.: expected a change of something else, .* X_tilde@5"),
        ({at("X@9"): 0.0}, "X@9: expected one of X@3"),
        ({at("X@8", layer=3): 0.0}, "expected a layer from 0 to 2, got 3"),
    ],
)
def test_what_cannot_be(changes, says):
    with pytest.raises(ValueError, match=says):
        generated(Generator(*model("LLAMA"), changes=changes))
