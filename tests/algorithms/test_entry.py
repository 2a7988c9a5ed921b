"""Algorithms 8 to 10 entered with embeddings instead of tokens: the values, the gradients, the padding, the errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.layers import lines_of
from tests import cases
from tests.algorithms.functions import CASES, called
from training import oracle

pytestmark = pytest.mark.sampled(2)

x = cases.random_tokens(13)


def embedded(tokens, theta):
    """The result of Algorithm 1, by the oracle."""
    W_e = np.asarray(theta.W_e)
    columns = [oracle.token_embedding(v, W_e) for v in np.asarray(tokens).ravel().tolist()]
    return jnp.asarray(np.stack(columns, axis=1)).reshape(-1, *tokens.shape)


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
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("of columns")])
def test_every_function_is_entered_likewise(name):
    """Tokens of a case, and their embeddings by the oracle."""
    case = CASES[name]
    entry = next(n for n in ("z", "x") if n in case.floats)
    tokens = np.array([3, 0, 6, 2, 5])[: case.floats[entry].shape[-1]]
    found = called(name, **{entry: embedded(tokens, case.floats["theta"])})
    cases.assert_trees_close(found, called(name, **{entry: tokens}))


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
