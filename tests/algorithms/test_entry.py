"""Algorithms 8 to 10 entered with embeddings instead of tokens: the values, the gradients, the padding, the errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.layers import lines_of
from tests import cases
from training import oracle

pytestmark = pytest.mark.sampled(2)

x, z = cases.random_tokens(13), cases.random_tokens(7, seed=1)


def embedded(tokens, theta):
    """The result of Algorithm 1, by the oracle."""
    W_e = np.asarray(theta.W_e)
    columns = [oracle.token_embedding(v, W_e) for v in np.asarray(tokens).ravel().tolist()]
    return jnp.asarray(np.stack(columns, axis=1)).reshape(-1, *tokens.shape)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)
def test_from_the_embeddings_of_tokens_the_decoder_computes_the_oracles_distribution(implementation):
    theta = cases.random_theta(cases.D)
    X, expected = embedded(x, theta), oracle.d_transformer(x, oracle.unstack(theta))
    hidden = alg.d_hidden_state(X, theta, implementation=implementation)
    cases.assert_close(alg.unembedding(hidden, theta.W_u), expected)
    cases.assert_close(alg.d_transformer(X, theta, implementation=implementation), expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["PAPER", "GPT2", "VASWANI", "LLAMA", "GEMMA", "BLOOM"])
def test_columns_get_positions_and_norms_as_tokens_do(name):
    """By ``positions=``, too; a scaled embedding is scaled once; and the residual stream gets nothing."""
    sizes = cases.SHARED | {"d_attn": 6, "d_mid": 6, "d_e": 12}
    theta = cases.random_theta(alg.DTransformerConfig(L=2, variant=alg.VARIANTS[name], **sizes))
    positions = jnp.arange(13)[None] + jnp.array([[0], [5]])
    batch = cases.random_tokens(2, 13)
    segments = jnp.asarray([[1] * 6 + [2] * 7, [1] * 13])
    f = lines_of("Algorithm 10", batch, theta, positions=positions)
    options = {"positions": positions, "segments": segments}
    whole, scale = alg.d_hidden_state(batch, theta, **options), 12**0.5 if theta.variant.embedding.scaled else 1.0
    cases.assert_close(alg.d_hidden_state(scale * embedded(batch, theta), theta, **options), whole)
    later = theta.variant.but(embedding=theta.variant.embedding.but(positions=None, normalized=False))
    rest = theta._replace(W_p=None, embedding_norm=None, variant=later)
    cases.assert_close(alg.d_hidden_state(f.embedding(batch, theta), rest, **options), whole)


@pytest.mark.end_to_end
def test_the_encoder_and_the_encoder_decoder_are_entered_likewise():
    theta = cases.random_theta(cases.E)
    X = embedded(x, theta)
    cases.assert_close(alg.e_encoding(X, theta), alg.e_encoding(x, theta))
    cases.assert_close(alg.e_hidden_state(X, theta), alg.e_hidden_state(x, theta))
    cases.assert_close(alg.e_transformer(X, theta), oracle.e_transformer(x, oracle.unstack(theta)))
    theta = cases.random_theta(cases.ED)
    expected = oracle.ed_transformer(z, x, oracle.unstack(theta))
    X = alg.ed_decoding(alg.ed_encoding(embedded(z, theta), theta), embedded(x, theta), theta)
    cases.assert_close(alg.unembedding(X, theta.W_u), expected)
    cases.assert_close(X, alg.ed_hidden_state(z, x, theta))
    cases.assert_close(alg.ed_hidden_state(z, embedded(x, theta), theta), X)
    cases.assert_close(alg.ed_transformer(z, embedded(x, theta), theta), expected)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["BERT", "ALBERT"])
def test_columns_of_bert_get_types_a_norm_and_a_projection(name):
    """And padding does not matter, whatever it is."""
    sizes = cases.SHARED | ({"d_in": 7} if name == "ALBERT" else {})
    variant = alg.VARIANTS[name].but(shared_layers=1)
    theta = cases.random_theta(alg.ETransformerConfig(L=2, N_types=2, variant=variant, **sizes))
    tokens, types, length = cases.random_tokens(2, 13), jnp.arange(26).reshape(2, 13) % 2, jnp.array([13, 5])
    X = embedded(tokens, theta).at[:, 1, 5:].set(jnp.nan)
    for options in ({"types": types}, {}):
        expected = alg.e_encoding(tokens, theta, length=length, **options)
        found, pullback = jax.vjp(lambda X, o=options: alg.e_encoding(X, theta, length=length, **o)[:, 1, :5], X)
        cases.assert_close(found, expected[:, 1, :5])
        assert jnp.isfinite(pullback(jnp.ones_like(found))[0]).all()
    with pytest.raises(
        ValueError, match=r"with the 11 rows of theta\.W_e, got \[5, 3\]|theta\.W_e: .* with d_in = 5 from x"
    ):
        alg.e_encoding(jnp.ones((5, 3)), theta)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("filler", [0.0, np.nan, np.inf])
def test_what_stands_in_the_padding_reaches_nothing(filler):
    theta = cases.random_theta(cases.D)
    X = embedded(x, theta)[:, None]
    padded = jnp.concatenate([X[..., :5], jnp.full((11, 1, 3), filler)], axis=-1)

    def first(X, length):
        return alg.d_hidden_state(X, theta, length=length)[..., :5]

    cases.assert_close(first(padded, jnp.array([5])), first(X[..., :5], None))
    gradient = jax.jit(jax.grad(lambda X: first(X, jnp.array([5])).sum()))(padded)
    np.testing.assert_array_equal(gradient[..., 5:], 0)
