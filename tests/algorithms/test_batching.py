"""A batch is what its sequences are one by one, in every direction of differentiation, and a wider matrix inside."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    UNIDIRECTIONAL,
    Variant,
    attention,
    d_hidden_state,
    d_transformer,
    e_transformer,
    ed_transformer,
    layer_norm,
    mh_attention,
    padding,
    positional_embedding,
    single_query_attention,
    token_embedding,
    unembedding,
)
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params

B = 3
x, z = cases.random_tokens(B, 7), cases.random_tokens(B, 5, seed=1)
LENGTHS = jnp.array([2, 7, 1])
THETA = {"ed": cases.random_theta(cases.ED), "e": cases.random_theta(cases.E), "d": cases.random_theta(cases.D)}
W_E, HEAD, HEADS = cases.normal(5, cases.N_V), head_params(d_z=7), mh_params(d_z=7)
X = cases.normal(B, 7, 11)

# One function of one example's arguments, the batch of each argument in front.
EXAMPLES = {
    1: (lambda v: token_embedding(v, W_E), (jnp.arange(B),)),
    2: (lambda t: positional_embedding(t, W_E), (jnp.arange(B),)),
    3: (lambda e, E: single_query_attention(e, E, HEAD), (X[:, :, 0], X)),
    4: (lambda X, l: attention(X, X, HEAD, UNIDIRECTIONAL & padding(l)), (X, LENGTHS)),
    5: (lambda X, l: mh_attention(X, X, HEADS, padding(l)), (X, LENGTHS)),
    6: (lambda e: layer_norm(e, W_E[0, :11], W_E[1, :11]), (X[:, 0],)),
    7: (lambda e: unembedding(e, W_E.T), (X[:, 0, :5],)),
    8: (lambda z, x, l: ed_transformer(z, x, THETA["ed"], z_length=l), (z, x, jnp.array([2, 5, 1]))),
    9: (lambda x, l: e_transformer(x, THETA["e"], length=l), (x, LENGTHS)),
    10: (lambda x: d_transformer(x, THETA["d"]), (x,)),
}


@pytest.mark.parametrize("number", EXAMPLES)
def test_vmap_is_a_loop(number):
    f, batch = EXAMPLES[number]
    together = jax.vmap(f)(*batch)
    for b in range(B):
        cases.assert_close(together[b], f(*(a[b] for a in batch)), 1e-12)


def test_the_batch_may_stand_on_any_axis_and_be_nested():
    f = functools.partial(d_hidden_state, theta=THETA["d"])
    expected = jax.vmap(f)(x)
    nested = jax.vmap(jax.vmap(f, in_axes=1, out_axes=2))(jnp.stack([x.T, x[::-1].T]))
    cases.assert_close(jnp.moveaxis(nested[0], 2, 0), expected, 1e-13)
    cases.assert_close(jnp.moveaxis(nested[1], 2, 0), expected[::-1], 1e-13)
    f = functools.partial(ed_transformer, theta=THETA["ed"])  # one context for all, and one sequence for all
    cases.assert_close(jax.vmap(f, (None, 0))(z[0], x)[2], f(z[0], x[2]), 1e-12)
    cases.assert_close(jax.vmap(f, (0, None))(z, x[0])[2], f(z[2], x[0]), 1e-12)


def sequence_loss(theta, x):
    return (d_hidden_state(x, theta)[0] ** 3).sum()


def test_the_gradient_of_a_batch_is_the_sum_of_its_sequences_gradients():
    theta = THETA["d"]
    per_example = jax.jit(jax.vmap(jax.grad(sequence_loss), (None, 0)))(theta, x)
    one = jax.jit(jax.grad(sequence_loss))
    for b in range(B):
        own = jax.tree.unflatten(jax.tree.structure(theta), [g[b] for g in jax.tree.leaves(per_example)])
        cases.assert_trees_close(own, one(theta, x[b]))
    of_batch = jax.jit(jax.grad(lambda theta: jax.vmap(sequence_loss, (None, 0))(theta, x).sum()))(theta)
    cases.assert_trees_close(of_batch, jax.tree.map(lambda g: g.sum(axis=0), per_example))


def test_an_ensemble_is_its_members():
    members = [cases.random_theta(cases.D, seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *members)
    together = jax.jit(jax.vmap(d_transformer, (None, 0)))(x[0], stacked)
    each_its_own = jax.jit(jax.vmap(d_transformer))(x[:2], stacked)
    for m, theta in enumerate(members):
        cases.assert_close(together[m], d_transformer(x[0], theta), 1e-12)
        cases.assert_close(each_its_own[m], d_transformer(x[m], theta), 1e-12)


def test_dropout_of_each_sequence_comes_from_its_own_key():
    variant = Variant(name="DROP", dropout=0.3)
    keys = jax.random.split(jax.random.key(0), B)
    f = functools.partial(d_hidden_state, theta=THETA["d"], variant=variant)
    same = jnp.broadcast_to(x[0], x.shape)
    together = jax.vmap(lambda x, key: f(x, key=key))(same, keys)
    for b in range(B):
        cases.assert_close(together[b], f(same[b], key=keys[b]), 1e-12)
    assert np.abs(together[0] - together[1]).max() > 0.1
    assert np.abs(together[0] - d_hidden_state(x[0], THETA["d"])).max() > 0.1


@pytest.mark.parametrize("architecture", ["e", "d"])
def test_a_batch_reaches_the_mlp_as_a_wider_matrix(architecture):
    """[d_mlp, d_e] × [d_e, columns]: no product with the weights of the MLP has a batch dimension."""
    f = {"e": e_transformer, "d": d_transformer}[architecture]
    program = jax.jit(jax.vmap(f, (0, None))).lower(x, THETA[architecture]).as_text()
    weights = rf"(<{cases.D.d_mlp}x{cases.D.d_e}xf64>|<{cases.D.d_e}x{cases.D.d_mlp}xf64>)"
    products = [line for line in program.splitlines() if re.search(rf"dot_general.*{weights}", line)]
    assert len(products) == 2
    assert not any("batching_dims" in line for line in products)
