"""Where every layer has a window, the cache has no more tokens than the widest: a ring, however long the text."""

import functools

import jax
import numpy as np
import pytest

from algorithms import LLAMA, DTransformerConfig
from algorithms.lines import ALiBi, Attention, Rotary
from tests.cases import assert_drawn, later, quick_of, random_theta
from training.generation import Generator, prefilling, states
from training.generation.prefixes import Prefixes

pytestmark = pytest.mark.sampled(1, tests=3)

WINDOWED = Attention(positions=Rotary(base=20.0), biases=False, window=5)
VARIANTS = {
    "one window": LLAMA.but(attention=WINDOWED),
    "two windows": LLAMA.but(attention=(WINDOWED, WINDOWED.but(window=11))),
    "chunks": LLAMA.but(attention=(WINDOWED.but(chunked=True), WINDOWED.but(window=11, chunked=True))),
    "distances": LLAMA.but(attention=Attention(positions=ALiBi(), biases=False, window=70)),
    "not all": LLAMA.but(attention=(WINDOWED, WINDOWED.but(window=None))),
}
LENGTHS = np.array([23, 3, 9])
X = np.random.default_rng(0).integers(17, size=(4, 41)).astype(np.int32)
KEY = later(lambda: jax.random.key(7))


def model(variant):
    sizes = {"N_V": 17, "l_max": 400, "L": 2, "H": 4, "H_kv": 2, "d_e": 12, "d_mlp": 13, "d_attn": 6, "d_mid": 5}
    config = DTransformerConfig(**sizes, variant=variant)
    return config, random_theta(config)


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", quick_of(["one window"], VARIANTS))
def test_tokens_far_behind_the_window_are_algorithm_14s(name):
    """Prompts longer and shorter than the window, and enough tokens for the slots to grow."""
    config, theta = model(VARIANTS[name])
    generator = Generator(theta, config)
    begun = generator.begin(X[:3, :23], lengths=LENGTHS, l_gen=60, key=KEY(), tau=0.8)
    begun.extend(60)
    assert_drawn(theta, [x[:n] for x, n in zip(X[:3], LENGTHS, strict=True)], begun.tokens, 0.8, KEY())


@pytest.mark.parametrize("name", VARIANTS)
def test_the_cache_of_a_layer_is_no_longer_than_its_window(name):
    """In bytes, from the prompt on and after the slots have grown; a token takes H_kv (d_attn + d_mid) numbers."""
    config, theta = model(VARIANTS[name])
    most = states.windows(config.variant, config.L)
    assert most == tuple(line.window for line in (config.variant.attentions * config.L)[: config.L])
    read = functools.partial(prefilling.prefill, theta, C=64, limits=most)
    shapes = jax.eval_shape(read, X[:3], LENGTHS.astype(np.int32))
    grown = jax.eval_shape(lambda state: states.grow(state, C=512), shapes)
    for state, C in ((shapes, 64), (grown, 512)):
        for cache, window in zip(state.caches, most, strict=True):
            numbers = sum(leaf.size for leaf in jax.tree.leaves(cache))
            assert numbers == 3 * min(C, window or C) * config.H_kv * (config.d_attn + config.d_mid)
        assert state.tokens.shape == (3, C)


@pytest.mark.thorough
def test_what_reads_all_tokens_keeps_all_of_them():
    """Texts may part before the window."""
    config, theta = model(VARIANTS["one window"])
    generator = Generator(theta, config, prefixes=Prefixes.for_texts(2, theta, config))
    long = generator.begin(X[:1], lengths=np.array([41]), l_gen=3, key=KEY(), tau=0.0)
    long.extend(3)
    long.keep(0)
    other = np.concatenate([X[:1, :20], X[1:2, 20:41]], axis=1)
    found = generator.generate(other, lengths=np.array([41]), l_gen=9, key=KEY(), tau=0.8)
    assert generator.prefixes.found == 20
    assert_drawn(theta, other, found, 0.8, KEY())
