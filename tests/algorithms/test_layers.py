"""The loop over the layers: each layer gets its own parameters, its own turn, and each of its draws its own key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import PAPER
from algorithms.layers import How, lines_of
from algorithms.lines import Attention

L, TOKENS = 4, jnp.zeros(1, int)


def lines(variant=PAPER, **options):
    theta = type("theta", (), {"distances": None, "variant": variant})
    return lines_of("Algorithm 10", TOKENS, theta, implementation="auto", **options)


def test_every_draw_of_every_layer_has_its_own_key():
    f = lines(key=jax.random.key(0))

    @f.each_layer(jnp.zeros((2, L)), jnp.arange(L))
    def drawn(X, l, f):
        for i in range(2):
            X = X.at[i, l].set(jax.random.uniform(f._key(i), dtype=X.dtype))
        return X

    assert np.unique(drawn).size == L * 2


@pytest.mark.parametrize("stacked", [jnp.arange(4.0), (0.0, 1.0, 2.0, 3.0)], ids=["stacked", "one by one"])
def test_the_layers_follow_each_other(stacked):
    f = lines()

    @f.each_layer(jnp.zeros((1, 1)), stacked)
    def X(X, l, _):
        return 10 * X + l

    assert X.item() == 123.0


@pytest.mark.parametrize(
    ("stacked", "unroll"),
    [(jnp.zeros((7, 1)), False), (jnp.zeros((7, 1)), True), ((jnp.zeros(1),) * 7, False)],
    ids=["stacked", "unrolled", "one by one"],
)
def test_the_layers_take_the_attentions_in_turn(monkeypatch, stacked, unroll):
    """A base of three lines, two of them equal: layer l has line l mod 3."""
    variant = PAPER.but(attention=(Attention(), Attention(window=5), Attention()))
    monkeypatch.setattr(Attention, "__call__", lambda line, X, *_, **__: (10 * X + (line.window or 1), None))
    f = lines(variant, how=How(unroll=unroll))

    @f.each_layer(jnp.zeros((1, 1)), stacked)
    def X(X, _, f):
        return f.mh_attention(X, X, None, None)

    assert X.item() == 1511511
