"""Looking inside while tokens are generated is looking inside one pass over the finished text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import DTransformerConfig, d_transformer
from algorithms.inside import at, intervene, record
from tests import cases, family_cases
from training.generation import Generator
from training.generation.requests import Request

pytestmark = pytest.mark.sampled(1, tests=2)

PROMPTS = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 0, 0, 0, 0], [8, 0, 0, 0, 0, 0, 0]])
LENGTHS = np.array([7, 3, 1])
KEY = cases.later(lambda: jax.random.key(0))
NAMES = ("X@3", "X@8", "X@10", "A", "S@5", "Q", "K", "V", "Y@2", at("A", layer=1, head=2), at("X@6", layer=-1))
DECODERS = (
    "LLAMA",
    *(name for name in family_cases.NAMED if name not in ("LLAMA", *family_cases.RECURRENT)),
    "PAPER",
    "GPT2",
)
VARIANTS, ROWS = (
    [n if n == "LLAMA" else pytest.param(n, marks=pytest.mark.slow) for n in names]
    for names in (DECODERS, family_cases.COVERING)
)


def model(name, **changes):
    if name in family_cases.EVERY:
        config = family_cases.config_of(name, **changes)
    else:
        config = DTransformerConfig(**{**family_cases.SIZES, "variant": getattr(algorithms, name), **changes})
    return family_cases.theta_of(config), config


def generated(generator, l_gen=6, tau=0.0, **options):
    begun = generator.begin(PROMPTS, lengths=LENGTHS, l_gen=l_gen, key=KEY(), tau=tau, **options)
    begun.extend(l_gen)
    return begun


def texts(begun):
    """What each request has read: all but its last token."""
    rows = zip(PROMPTS, LENGTHS, begun.tokens, strict=True)
    return [np.concatenate([x[:l], y])[:-1] for x, l, y in rows]


def of_one_pass(texts, found, theta, changes=(), names=("X@8", "A")):
    """What was recorded of each text, and what one pass over it shows; no column sees the padding behind it."""
    f = record(intervene(d_transformer, dict(changes)), *names)
    for text, seen in zip(texts, found, strict=True):
        _, whole = f(np.pad(text, (0, max(map(len, texts)) - len(text))), theta)
        yield seen, jax.tree.map(lambda a, b: np.asarray(b)[tuple(map(slice, a.shape))], seen, whole)


def assert_seen(*arguments, tolerance=1e-8, **options):
    for seen, expected in of_one_pass(*arguments, **options):
        cases.assert_trees_close(seen, expected, tolerance)


def missing(variant):
    """What a decoder of these lines does not compute."""
    no_norm = {"X@10"} if variant.final_norm is False else set()
    return no_norm | ({"X@6"} if variant.order in ("side_by_side", "one_norm") else set())


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*VARIANTS, *ROWS])
def test_reading_while_generating_is_one_pass_over_the_text(name):
    theta, config = model(name)
    names = [where for where in NAMES if getattr(where, "name", where) not in missing(config.variant)]
    begun, unseen = generated(Generator(theta, config, names=names)), generated(Generator(theta, config))
    np.testing.assert_array_equal(begun.tokens, unseen.tokens)
    assert unseen.seen() == []
    assert begun.tokens.shape == (3, 6)
    for seen, expected in of_one_pass(texts(begun), begun.seen(), theta, names=names):
        for where in names:
            finite = [np.maximum(of[where], -1e9) for of in (seen, expected)]
            cases.assert_close(*finite, 1e-9, name=where)


def steer(X):
    return X + 3 * jnp.sin(jnp.arange(10.0)).reshape(10, *(1,) * (X.ndim - 1))


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
    x, _ = cases.padded(texts(found))
    likeliest = np.argmax(intervene(d_transformer, CHANGES[changes])(x, theta), axis=0)
    for row, l, y in zip(likeliest, LENGTHS, found.tokens, strict=True):
        np.testing.assert_array_equal(row[l - 1 :][:6], y)  # each given those before it
    assert not np.allclose(found.log_p, plain.log_p)


@pytest.mark.thorough
def test_what_is_recorded_is_changed_and_goes_on_in_larger_caches_and_windows():
    theta, config = model("LLAMA", l_max=90)
    changes = {at("X@8", layer=0): steer}
    generator = Generator(theta, config, changes=changes, names=("X@8", "A"))
    begun = generated(generator, l_gen=75)  # 64 slots are not enough
    assert_seen(texts(begun), begun.seen(), theta, changes)
    theta, config = model("LLAMA", l_max=8)
    begun = generated(Generator(theta, config, changes=changes, names=("X@8", "A")), sliding=True, l_gen=9)
    sizes = [seen["X@8"].shape[-1] for seen in begun.seen()]
    assert all(3 <= n <= 8 for n in sizes)
    assert_seen([text[-n:] for text, n in zip(texts(begun), sizes, strict=True)], begun.seen(), theta, changes)


@pytest.mark.thorough
def test_who_joins_is_read_and_steered_as_the_others():
    """As the server generates."""
    theta, config = model("LLAMA", l_max=40)
    changes = {at("Y@2", layer=1, head=3): 0.0}
    generator = Generator(theta, config, changes=changes, names=("X@8", "A"))
    begun = generated(generator, l_gen=3, tau=0.7)
    new, lengths = np.array([[7, 2, 0], [4, 4, 4]]), np.array([2, 3])
    keys = jax.random.split(jax.random.key(5), 2)
    both = [Request(x[:l], key, 8, {"tau": 0.0}) for x, l, key in zip(new, lengths, keys, strict=True)]
    begun.join(both, keep=[2, 3, 0, 4])
    begun.extend(8)
    prompts = [PROMPTS[2, :1], new[0, :2], PROMPTS[0], new[1]]
    of_rows = zip(prompts, begun.tokens, begun.starts, strict=True)
    whole = [jnp.asarray(np.concatenate([x, y[start:]])[:-1]) for x, y, start in of_rows]
    assert_seen(whole, begun.seen(), theta, changes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"changes": {at("X@8", layer=0, token=2): 0.0}}, r"expected no token while text is generated"),
        ({"names": (at("A", context=1),)}, "expected no context while text is generated, .* got 1; leave it out"),
        ({"changes": {at("V", layer=0): 0.0}}, "V.layer=0.: expected a change of something else, .* X_tilde@5"),
        ({"names": ("X@9",)}, "X@9: expected one of X@3"),
        ({"changes": {at("X@8", layer=3): 0.0}}, "expected a layer from 0 to 2, got 3"),
    ],
)
def test_what_cannot_be(options, says):
    with pytest.raises(ValueError, match=says):
        generated(Generator(*model("LLAMA"), **options))
