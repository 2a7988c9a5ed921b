"""What a batch is inside: a wider matrix; and its gradients, ensembles and dropout. (Its values: test_batch_axes.)"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    PAPER,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    d_hidden_state,
    d_transformer,
    e_transformer,
    ed_transformer,
)
from tests import cases

B = 3
x, z = cases.random_tokens(B, 7), cases.random_tokens(B, 5, seed=1)
THETA = {
    "ed": cases.random_theta(EDTransformerConfig(L_enc=1, L_dec=1, **cases.SHARED)),
    "e": cases.random_theta(ETransformerConfig(L=1, d_f=19, **cases.SHARED)),
    "d": cases.random_theta(DTransformerConfig(L=1, **cases.SHARED)),
}


def test_the_batch_may_stand_on_any_axis_and_be_nested():
    f = functools.partial(d_hidden_state, theta=THETA["d"])
    expected = jnp.moveaxis(f(x), 1, 0)
    nested = jax.vmap(jax.vmap(f, in_axes=1, out_axes=2))(jnp.stack([x.T, x[::-1].T]))
    cases.assert_close(jnp.moveaxis(nested[0], 2, 0), expected, 1e-13)
    cases.assert_close(jnp.moveaxis(nested[1], 2, 0), expected[::-1], 1e-13)


def test_one_context_serves_all_sequences():
    f = functools.partial(ed_transformer, theta=THETA["ed"])
    cases.assert_close(f(z[0], x), f(jnp.stack([z[0]] * B), x), 1e-12)


def sequence_loss(theta, x):
    return (d_hidden_state(x, theta)[0] ** 3).sum()


def test_the_gradient_of_a_batch_is_the_sum_of_its_sequences_gradients():
    theta = THETA["d"]
    gradient = jax.jit(jax.grad(sequence_loss))
    each = [gradient(theta, x[b]) for b in range(B)]
    per_example = jax.jit(jax.vmap(jax.grad(sequence_loss), (None, 0)))(theta, x)
    for b in range(B):
        cases.assert_trees_close(jax.tree.map(lambda g, b=b: g[b], per_example), each[b])
    cases.assert_trees_close(gradient(theta, x), jax.tree.map(lambda *g: sum(g), *each))


def test_an_ensemble_is_its_members():
    members = [cases.random_theta(DTransformerConfig(L=1, **cases.SHARED), seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *members)
    together = jax.jit(jax.vmap(d_transformer, (None, 0)))(x[0], stacked)
    each_its_own = jax.jit(jax.vmap(d_transformer))(x[:2], stacked)
    for m, theta in enumerate(members):
        cases.assert_close(together[m], d_transformer(x[0], theta), 1e-12)
        cases.assert_close(each_its_own[m], d_transformer(x[m], theta), 1e-12)


def test_dropout_of_each_sequence_comes_from_its_own_key():
    variant = PAPER.but(dropout=0.3)
    keys = jax.random.split(jax.random.key(0), B)
    f = functools.partial(d_hidden_state, theta=THETA["d"], variant=variant)
    same = jnp.broadcast_to(x[0], x.shape)
    together = f(same, key=keys)
    for b in range(B):
        cases.assert_close(together[:, b], f(same[b], key=keys[b]), 1e-12)
    assert np.abs(together[:, 0] - together[:, 1]).max() > 0.1
    assert np.abs(together[:, 0] - d_hidden_state(x[0], THETA["d"])).max() > 0.1


def products_with(theta, program):
    """The lines of a lowered program that are products with the weights of the MLP, or with their transposes."""
    d_mlp, d_e = theta.layers.mlp.W_mlp1.shape[1:]
    weights = rf"(<{d_mlp}x{d_e}xf64>|<{d_e}x{d_mlp}xf64>)"
    return [line for line in program.splitlines() if re.search(rf"dot_general.*{weights}", line)]


@pytest.mark.parametrize("by_vmap", [False, True])
@pytest.mark.parametrize("architecture", ["e", "d"])
def test_a_batch_reaches_the_mlp_as_a_wider_matrix(architecture, by_vmap):
    """[d_mlp, d_e] × [d_e, columns]: no product with the weights of the MLP has a batch dimension."""
    f, theta = {"e": e_transformer, "d": d_transformer}[architecture], THETA[architecture]
    of_batch = jax.vmap(f, (0, None), 1) if by_vmap else f
    products = products_with(theta, jax.jit(of_batch).lower(x, theta).as_text())
    assert len(products) == 2
    assert not any("batching_dims" in line for line in products)


def test_the_gradient_by_the_mlp_is_one_product_with_all_columns():
    """∂F/∂W = dY Xᵀ with the tokens of all sequences as columns: no gradient of a single sequence is formed."""
    theta = THETA["d"]
    program = jax.jit(jax.grad(sequence_loss)).lower(theta, x).as_text()
    d_mlp, d_e = theta.layers.mlp.W_mlp1.shape[1:]
    results = [line.rsplit("->", 1)[-1] for line in program.splitlines() if "dot_general" in line]
    assert sum(f"<{d_mlp}x{d_e}xf64>" in r or f"<{d_e}x{d_mlp}xf64>" in r for r in results) == 2
    assert not any(f"<{B}x{d_mlp}x{d_e}xf64>" in r or f"<{B}x{d_e}x{d_mlp}xf64>" in r for r in results)
