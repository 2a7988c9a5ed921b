"""Sinks: every rule computes the softmax with one score more, also where a token has nothing to attend to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import BIDIRECTIONAL
from algorithms.lines import Attention
from algorithms.machinery.options import using
from algorithms.model.mixer import MixerMetadata
from algorithms.ops.attention.dispatch import RULES
from algorithms.ops.attention.tiles import Scores
from tests.cases import assert_trees_close, normal, random_like, small_blocks

LINE = Attention(sinks=True, biases=False, cap=1.5)
SIZES = {"H": 4, "H_kv": 2, "d_e": 7, "d_attn": 5, "d_mid": 3}
W = random_like(jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.of(SIZES), float), LINE.shapes()))
X = normal(7, 2, 11)
MASK = jax.device_put((np.random.default_rng(0).random((11, 11)) < 0.5) & (np.arange(11) != 3))


def computed(how, dropout):
    def loss(X, W):
        key = jax.random.split(jax.random.key(0), 2) if dropout else None
        with using(implementation=how, dropout=dropout, key=key):
            Y, _ = LINE.whole(X, W, MASK, MixerMetadata(np.arange(11)))
        return (Y * jnp.sin(jnp.arange(Y.size).reshape(Y.shape))).sum(), Y

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(X, W)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dropout", [0.3, pytest.param(0.0, marks=pytest.mark.thorough)])
def test_every_rule_computes_what_is_printed(rule, dropout):
    with small_blocks(4):
        (value, by), expected = computed(rule, dropout), computed("paper", dropout)
    assert_trees_close((value, by), expected)
    assert np.abs(by[1].s).max() > 1e-3
    assert np.all(np.asarray(value[1])[:, :, 3] == 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_of_a_sink_in_bfloat16(rule):
    """A sink's weight is no difference of rounded ones: here it is 1/3000 of all."""
    Q, K, V, E = (normal(1, 16, 1, 64, seed=seed, dtype="bfloat16") for seed in range(4))
    V, E, s = 1 + abs(V), 1 + abs(E), jnp.array([-5.0])

    def gradient(rule, dtype):
        arrays, of = [a.astype(dtype) for a in (Q, K, V, E)], s.astype(dtype)
        return jax.jit(jax.grad(lambda s: (rule(*arrays[:3], s) * arrays[3]).astype("float64").sum()))(of)

    def printed(Q, K, V, s):
        exp_S = jnp.exp(jnp.einsum("hdbz,hdbx->zx", K, Q) / 4)
        return jnp.einsum("hdbz,zx->hdbx", V, exp_S / (jnp.exp(s[0]) + exp_S.sum(0, keepdims=True)))

    found = gradient(lambda Q, K, V, s: RULES[rule](Q, K, V, Scores(BIDIRECTIONAL, sinks=s)), "bfloat16")
    np.testing.assert_allclose(found, gradient(printed, "float64"), rtol=0.01)
