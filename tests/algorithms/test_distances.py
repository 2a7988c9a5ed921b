"""Scores by distance: T5's, ALiBi's and Transformer-XL's, in every implementation, with all that attention has.

Values of whole models, and cached decoding, are in ``test_family``; transformers' T5 is in ``test_encoder_decoder``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import ALiBi, Attention, Distances, Embedding, LayerNorm, TransformerXL
from algorithms.model.distances import DistanceTable
from algorithms.ops.attention.tiles import scores_by_distance, scores_by_distance_backward
from tests import cases, family_cases
from training.oracle.positions import t5_bucket

pytestmark = pytest.mark.sampled(1)

KINDS = {"distances": Distances(buckets=6, farthest=7), "alibi": ALiBi(), "transformer_xl": TransformerXL(base=20.0)}
SIZES = {"N_V": 19, "l_max": 17, "L": 2, "H": 6, "H_kv": 2, "d_e": 10, "d_mlp": 13, "d_attn": 4, "d_mid": 5}
X = cases.array(family_cases.X)
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _small_blocks():
    with cases.small_blocks(5, LEAST=3):
        yield


def variant_of(kind, **attention) -> alg.Variant:
    line = Attention(positions=KINDS.get(kind), **attention)
    return alg.PAPER.but(embedding=Embedding(positions=None), norm=LayerNorm(epsilon=1e-3), attention=line)


def theta_of(kind, of=alg.DTransformerConfig, **sizes):
    return cases.random_theta(of(**{**SIZES, **sizes}, variant=variant_of(kind)), scale=0.4)


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
