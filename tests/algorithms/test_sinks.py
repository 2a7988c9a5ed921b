"""Sinks: every rule computes the softmax with one score more, also where a token has nothing to attend to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.lines import Attention
from algorithms.model.mixer import Given
from algorithms.ops.attention import blockwise
from tests.cases import assert_trees_close, normal, random_like

LINE = Attention(sinks=True, biases=False, cap=1.5)
SIZES = {"H": 4, "H_kv": 2, "d_e": 7, "d_attn": 5, "d_mid": 3}
W = random_like(jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.of(SIZES), float), LINE.shapes()))
X = normal(7, 2, 11)
MASK = jnp.asarray(np.random.default_rng(0).random((11, 11)) < 0.5).at[:, 3].set(False)


def computed(how, dropout):
    def loss(X, W):
        key = jax.random.split(jax.random.key(0), 2) if dropout else None
        Y, _ = LINE.whole(X, W, MASK, Given(np.arange(11), how, dropout=dropout, key=key))
        return (Y * jnp.sin(jnp.arange(Y.size).reshape(Y.shape))).sum(), Y

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(X, W)


@pytest.mark.parametrize("rule", ["dense", "blockwise", "strips"])
@pytest.mark.parametrize("dropout", [0.3, pytest.param(0.0, marks=pytest.mark.thorough)])
def test_every_rule_computes_what_is_printed(rule, dropout, monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 4)
    (value, by), expected = computed(rule, dropout), computed("paper", dropout)
    assert_trees_close((value, by), expected)
    assert jnp.abs(by[1].s).max() > 1e-3
    assert jnp.all(value[1][:, :, 3] == 0)
