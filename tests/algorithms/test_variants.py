"""Changed lines of VASWANI and BERT against the same computed in another way."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import Embedding, LayerNorm
from tests import cases
from training.crosscheck import oracle

SIZES = {"N_V": 17, "l_max": 13, "H": 2, "d_e": 6, "d_mlp": 11}
DOUBLE = jnp.dtype("float64")
x, z = cases.random_tokens(7), cases.random_tokens(5, seed=1)


def test_sinusoids_may_be_computed_or_given_as_learned_positions():
    theta = cases.random_theta(alg.EDTransformerConfig(L_enc=1, L_dec=1, variant=alg.VASWANI, **SIZES))
    W_p = alg.sinusoidal_positional_embedding(6, 13, base=10000, dtype=DOUBLE)
    computed = alg.ed_transformer(z, x, theta)
    learned = alg.VASWANI.but(embedding=alg.VASWANI.embedding.but(positions="learned"))
    given = alg.ed_transformer(z, x, theta._replace(W_p=W_p, variant=learned))
    cases.assert_close(given, computed, 1e-13)


def test_the_output_bias_and_the_embedding_norm_are_added_to_the_paper():
    theta = cases.random_theta(alg.ETransformerConfig(L=1, variant=alg.BERT, **SIZES))
    logits = theta.W_e.T @ alg.e_hidden_state(x, theta) + theta.b_u[:, None]
    P = alg.e_transformer(x, theta)
    cases.assert_close(P, oracle.softmax(np.asarray(logits)))
    plain = alg.BERT.but(embedding=Embedding())
    without = alg.e_transformer(x, theta._replace(embedding_norm=None, variant=plain))
    assert np.abs(P - without).max() > 1e-3


def test_the_embedding_is_scaled_by_the_root_of_d_e():
    theta = cases.random_theta(alg.EDTransformerConfig(L_enc=1, L_dec=1, variant=alg.VASWANI, tied=False, **SIZES))
    scaled = alg.PAPER.but(norm=LayerNorm(epsilon=1e-6), embedding=Embedding(positions="sinusoidal", scaled=True))
    plain = alg.PAPER.but(norm=LayerNorm(epsilon=1e-6), embedding=Embedding(positions="sinusoidal"))
    expected = alg.ed_transformer(z, x, theta._replace(W_e=math.sqrt(6) * theta.W_e, variant=plain))
    cases.assert_close(alg.ed_transformer(z, x, theta._replace(variant=scaled)), expected)


def test_variants_are_frozen_and_hashable():
    assert len({alg.PAPER, alg.VASWANI, alg.BERT, alg.GPT2, alg.Variant()}) == 4
    with pytest.raises(AttributeError):
        alg.PAPER.epsilon = 1.0
