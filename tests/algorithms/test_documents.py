"""What documents 000 and 003 describe beside the paper: their blocks, losses, counts and costs.

The judge is ``training.oracle.family``, loops of NumPy written from the documents.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import MLP, Attention, Embedding, LayerNorm, Unembedding
from tests import family_cases
from tests.cases import small_blocks
from tests.training.test_flops import flops_in

pytestmark = pytest.mark.sampled(2)

BLOCK_000 = alg.PAPER.but(
    norm=LayerNorm(epsilon=1e-3),
    attention=Attention(biases=False, normalize_output=LayerNorm(epsilon=1e-3)),
    mlp=MLP(activation="relu", biases=False),
    order="no_norm",
    final_norm=False,
)
"""Document 000: Y = X + LN(Z) + FFN(X + LN(Z)), without biases, with ReLU."""

UNDIVIDED_000 = BLOCK_000.but(attention=BLOCK_000.attentions[0].but(scale=1.0))
"""The same with scores that are not divided by √d_attn."""

DECODER_003 = alg.PAPER.but(
    embedding=Embedding(positions="sinusoidal"),
    norm=LayerNorm(epsilon=1e-6),
    attention=Attention(biases=False),
    mlp=MLP(activation="relu"),
    order="norm_last",
    final_norm=False,
    unembedding=Unembedding(bias=True),
)
"""Document 003, section 12.6: norms after the residual additions, projections without biases, an output bias."""

VARIANTS = {"000": BLOCK_000, "000 undivided": UNDIVIDED_000, "003": DECODER_003}


@functools.cache
def case(name):
    sizes = family_cases.SIZES | {"l_max": 23, "H_kv": 6}
    config = alg.DTransformerConfig(**sizes, variant=VARIANTS[name])
    theta = family_cases.theta_of(config)
    logits = [family_cases.oracle_logits(x, theta, config.variant) for x in family_cases.X]
    return config, theta, np.stack(logits, axis=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", ["paper", "dense", "blockwise"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_blocks_are_the_documents(name, implementation):
    _, theta, logits = case(name)
    with small_blocks(5):
        P = alg.d_transformer(jnp.asarray(family_cases.X), theta, implementation=implementation)
    np.testing.assert_allclose(P, np.exp(logits) / np.exp(logits).sum(axis=0), atol=1e-10)


def flops_of_layers(l, d_e, d_mlp, L):
    """Of the compiled forward pass by the lines as printed, without embedding and unembedding."""
    config = alg.DTransformerConfig(N_V=4, l_max=l, L=L, H=4, d_e=d_e, d_mlp=d_mlp)
    shapes = jax.eval_shape(lambda: alg.init_d_transformer(jax.random.key(0), config))
    x = jax.ShapeDtypeStruct((l,), jnp.int32)
    jaxpr = jax.make_jaxpr(functools.partial(alg.d_hidden_state, implementation="paper"))(x, shapes).jaxpr
    return flops_in(jaxpr)


def test_the_complexities_of_003():
    """Section 12.8: attention is O(n² d N), the MLP O(n d d_ff N), projections O(n d² N): exactly these, no more."""

    def expected(n, d, d_ff, N):
        return 2 * N * (2 * n * n * d + 4 * n * d * d + 2 * n * d * d_ff)  # a multiplication and an addition each

    for n, d, d_ff, N in ((32, 16, 24, 1), (64, 16, 24, 1), (32, 32, 24, 1), (32, 16, 48, 1), (32, 16, 24, 3)):
        assert flops_of_layers(n, d, d_ff, N) == expected(n, d, d_ff, N)
