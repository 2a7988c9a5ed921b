"""Scores by distance: T5's, ALiBi's and Transformer-XL's, in every implementation; and sinks, one score more each.

Values of whole models, and cached decoding, are in ``test_family``; transformers' T5 is in ``test_encoder_decoder``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import ALiBi, Attention, Distances, Embedding, LayerNorm, TransformerXL
from algorithms.machinery.options import using
from algorithms.model.mixer import MixerMetadata
from algorithms.model.positions import DistanceTable
from algorithms.ops.attention.dispatch import RULES
from algorithms.ops.attention.tiles import Scores, scores_by_distance, scores_by_distance_backward
from tests import cases
from training.oracle.positions import t5_bucket

pytestmark = pytest.mark.sampled(1)

KINDS = {"distances": Distances(buckets=6, farthest=7), "alibi": ALiBi(), "transformer_xl": TransformerXL(base=20.0)}
SIZES = {"N_V": 19, "l_max": 17, "L": 2, "H": 6, "H_kv": 2, "d_e": 10, "d_mlp": 13, "d_attn": 4, "d_mid": 5}


@pytest.fixture(autouse=True)
def _small_blocks():
    with cases.small_blocks(5, LEAST=3):
        yield


def variant_of(kind, **attention) -> alg.Variant:
    line = Attention(positions=KINDS.get(kind), **attention)
    return alg.PAPER.but(embedding=Embedding(positions=None), norm=LayerNorm(epsilon=1e-3), attention=line)


@pytest.mark.parametrize(("l_z", "l_x"), [(7, 5), (3, 11), (1, 1), (5, 1), (1, 4)])
def test_the_shift_by_a_reshape_is_the_printed_index(l_z, l_x):
    U, P, E = cases.normal(3, l_x), cases.normal(3, l_z + l_x), cases.normal(l_z, l_x)
    expected = [[P[:, t_z - t_x + l_x - 1] @ U[:, t_x] for t_x in range(l_x)] for t_z in range(l_z)]
    S, pullback = jax.vjp(functools.partial(scores_by_distance, dtype=jnp.dtype("float64")), U, P)
    np.testing.assert_allclose(S, np.array(expected), atol=1e-12)
    for found, by_jax in zip(scores_by_distance_backward(U, P, E), pullback(E), strict=True):
        np.testing.assert_allclose(found, by_jax, atol=1e-12)


@pytest.mark.parametrize("both_ways", [False, True])
def test_buckets_are_the_oracles(both_ways):
    expected = [t5_bucket(t, both_ways, 32, 128) for t in range(-200, 201)]
    np.testing.assert_array_equal(Distances().bucket(np.arange(-200, 201), both_ways), expected)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_blockwise_never_forms_all_scores(kind):
    """No array of forward and backward has as many entries as there are scores; the lines as printed have one."""
    l = 2048
    config = alg.DTransformerConfig(**{**SIZES, "l_max": l, "L": 1, "H": 2}, variant=variant_of(kind))
    shapes = jax.eval_shape(lambda: alg.init_d_transformer(jax.random.key(0), config))

    def largest(implementation):
        def loss(theta, x):
            return alg.d_hidden_state(x, theta, implementation=implementation).sum()

        jaxpr = jax.make_jaxpr(jax.grad(loss))(shapes, jax.ShapeDtypeStruct((l,), jnp.int32)).jaxpr
        return max(v.aval.size for eqn in cases.every_equation(jaxpr) for v in eqn.outvars if hasattr(v.aval, "size"))

    with cases.small_blocks(128):
        assert largest("blockwise") < l * l / 8
    assert largest("paper") >= l * l
    assert largest("dense") >= 2 * l * l


def test_alibi_in_bfloat16_keeps_its_distances():
    """A slope times a distance is formed in float32: bfloat16 has no odd distances above 256."""
    P = ALiBi().keys(np.array([-257, -256]), None, DistanceTable(), jnp.zeros((8, 4, 1), jnp.bfloat16))
    assert P.dtype == jnp.float32
    np.testing.assert_array_equal(P[0, 0], [-128.5, -128.0])


SINKS = Attention(sinks=True, biases=False, cap=1.5)
W = cases.random_like(jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.of(SIZES), float), SINKS.shapes()))
X = cases.normal(10, 2, 11)
MASK = jax.device_put((np.random.default_rng(0).random((11, 11)) < 0.5) & (np.arange(11) != 3))


def computed(how, dropout):
    def loss(X, W):
        key = jax.random.split(jax.random.key(0), 2) if dropout else None
        with using(implementation=how, dropout=dropout, key=key):
            Y, _ = SINKS.whole(X, W, MASK, MixerMetadata(np.arange(11)))
        return (Y * jnp.sin(jnp.arange(Y.size).reshape(Y.shape))).sum(), Y

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(X, W)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dropout", [0.3, pytest.param(0.0, marks=pytest.mark.thorough)])
def test_every_rule_computes_what_is_printed(rule, dropout):
    (value, by), expected = computed(rule, dropout), computed("paper", dropout)
    cases.assert_trees_close((value, by), expected)
    assert np.abs(by[1].s).max() > 1e-3
    assert np.all(np.asarray(value[1])[:, :, 3] == 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_of_a_sink_in_bfloat16(rule):
    """A sink's weight is no difference of rounded ones: here it is 1/3000 of all."""
    Q, K, V, E = (cases.normal(1, 16, 1, 64, seed=seed, dtype="bfloat16") for seed in range(4))
    V, E, s = 1 + abs(V), 1 + abs(E), jnp.array([-5.0])

    def gradient(rule, dtype):
        arrays, of = [a.astype(dtype) for a in (Q, K, V, E)], s.astype(dtype)
        return jax.jit(jax.grad(lambda s: (rule(*arrays[:3], s) * arrays[3]).astype("float64").sum()))(of)

    def printed(Q, K, V, s):
        exp_S = jnp.exp(jnp.einsum("hdbz,hdbx->zx", K, Q) / 4)
        return jnp.einsum("hdbz,zx->hdbx", V, exp_S / (jnp.exp(s[0]) + exp_S.sum(0, keepdims=True)))

    found = gradient(lambda Q, K, V, s: RULES[rule](Q, K, V, Scores(alg.BIDIRECTIONAL, sinks=s)), "bfloat16")
    np.testing.assert_allclose(found, gradient(printed, "float64"), rtol=0.01)
