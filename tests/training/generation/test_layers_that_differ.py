"""Cached generation from layers that differ: states beside keys and values, each of its own size."""

from typing import Any

import jax
import numpy as np
import pytest

from algorithms import DTransformerConfig, d_transformer
from algorithms.inside import at, intervene, record
from tests.cases import assert_drawn, assert_trees_close, later, random_theta
from tests.own_lines.retention import HYBRID
from training.generation import Generator
from training.generation.cache import RecurrentState, rows_of
from training.generation.prefixes import Prefixes

pytestmark = pytest.mark.sampled(1, tests=2)

CONFIG = DTransformerConfig(N_V=13, l_max=130, L=4, H=2, d_e=8, d_mlp=5, variant=HYBRID)
THETA = later(lambda: random_theta(CONFIG))
X, LENGTHS = np.random.default_rng(0).integers(0, 10, (3, 9)), np.array([9, 2, 5])
KEY = later(lambda: jax.random.key(3))


@pytest.mark.parametrize("stacked", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_tokens_are_algorithm_14s(stacked):
    """Beyond the window, and until the slots have grown; from layers one by one, as on a CPU, and in loops."""
    generator = Generator(THETA(), CONFIG)
    generator.apart = THETA() if stacked else generator.apart
    tokens = generator.generate(X, lengths=LENGTHS, l_gen=80, tau=0.8, key=KEY())
    assert_drawn(THETA(), [x[:n] for x, n in zip(X, LENGTHS, strict=True)], tokens, 0.8, KEY())


def test_every_layer_keeps_as_much_as_it_needs():
    state = Generator(THETA(), CONFIG).begin(X, lengths=LENGTHS, l_gen=80, tau=0.8, key=KEY())._state
    caches: Any = state.caches
    for l, cache in enumerate(caches):
        assert isinstance(cache, RecurrentState) == (l % 3 < 2)
        assert cache.state.shape == (7, 3) if l % 3 < 2 else rows_of(cache) == 5


@pytest.mark.end_to_end
def test_what_is_recorded_and_changed_is_that_of_whole_texts():
    """Also the values of a custom mixer, by its own name."""
    names, changes = ("values", "X@8", "A"), {at("values", layer=1): lambda values: -2 * values}
    generator = Generator(THETA(), CONFIG, names=names, changes=changes)
    begun = generator.begin(X, lengths=LENGTHS, l_gen=6, tau=0.0, key=KEY())
    begun.extend(6)
    assert (begun.tokens != Generator(THETA(), CONFIG).generate(X, lengths=LENGTHS, l_gen=6, tau=0.0, key=KEY())).any()
    of_text = record(intervene(d_transformer, changes), *names)
    for x, n, y, seen in zip(X, LENGTHS, begun.tokens, begun.seen(), strict=True):
        padded = np.pad(np.concatenate([x[:n], y])[:-1], (0, 9 - n))  # no token attends to those after it
        whole = jax.tree.map(lambda a, b: np.asarray(b)[tuple(map(slice, a.shape))], seen, of_text(padded, THETA())[1])
        assert_trees_close(seen, whole, 1e-8)


def test_a_state_cannot_be_cut_at_a_prefix():
    with pytest.raises(
        ValueError, match=r"prefixes: expected .* keys and values, got one with Retention and Attention"
    ):
        Generator(THETA(), CONFIG, prefixes=Prefixes(1 << 20))
