"""The loop over the layers: each layer gets its own parameters, its own turn, and each of its draws its own key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import PAPER
from algorithms.layers import lines_of
from algorithms.lines import Attention

L, DRAWS = 4, 3
ORDERS = ("norm_first",)


def test_every_draw_of_every_layer_has_its_own_key():
    def layer(X, l, f):
        for i in range(DRAWS):
            X = X.at[i, l].set(jax.random.uniform(next(f.keys), dtype=X.dtype))
        return X

    f = lines_of(PAPER, "auto", "gelu", ORDERS, key=jax.random.key(0))
    drawn = f.each_layer(layer, jnp.zeros((DRAWS, L)), jnp.arange(L), draws=DRAWS)
    assert np.unique(drawn).size == L * DRAWS


@pytest.mark.parametrize("stacked", [jnp.arange(4.0), (0.0, 1.0, 2.0, 3.0)], ids=["stacked", "one by one"])
def test_the_layers_follow_each_other(stacked):
    f = lines_of(PAPER, "auto", "gelu", ORDERS)
    X = f.each_layer(lambda X, l, _: 10 * X + l, jnp.zeros((1, 1)), stacked)
    assert X.item() == 123.0


@pytest.mark.parametrize(
    ("stacked", "unroll"),
    [(jnp.zeros((7, 1)), False), (jnp.zeros((7, 1)), True), ((jnp.zeros(1),) * 7, False)],
    ids=["stacked", "unrolled", "one by one"],
)
def test_the_layers_take_the_attentions_in_turn(stacked, unroll):
    """A base of three lines, two of them equal: layer l has line l mod 3."""
    variant = PAPER.but(attention=(Attention(), Attention(window=5), Attention()))

    def attend(line, X, *_, **__):
        return 10 * X + (line.window or 1), None

    def layer(X, _, f):
        return f.mh_attention(X, X, None, None, None, None)

    f = lines_of(variant, "auto", "gelu", ORDERS, attend=attend, unroll=unroll)
    assert f.each_layer(layer, jnp.zeros((1, 1)), stacked).item() == 1511511
