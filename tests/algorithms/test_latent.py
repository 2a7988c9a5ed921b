"""Latent attention in narrow types and on meshes, in Algorithm 10."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import DTransformerConfig, d_hidden_state, d_logits, empty_cache, read_tokens
from algorithms.lines import Latent
from algorithms.model.variants import LLAMA
from tests import cases
from tests.algorithms.test_sharding import mesh_of

pytestmark = pytest.mark.thorough

LATENT = LLAMA.but(attention=Latent(d_c=6, d_r=4, d_q=5))
CONFIG = DTransformerConfig(N_V=19, l_max=12, L=2, H=4, d_e=8, d_mlp=6, d_attn=3, d_mid=5, variant=LATENT)
X = cases.random_tokens(2, 12, n=19)


@functools.cache
def computed(dtype, *mesh):
    """The hidden state and the gradients of its weighted sum."""

    def loss(theta):
        X_hidden = d_hidden_state(X, theta)
        weights = jnp.sin(jnp.arange(X_hidden.size)).reshape(X_hidden.shape).astype(X_hidden.dtype)
        return (X_hidden * weights).sum(dtype=float), X_hidden

    theta = cases.random_theta(CONFIG, dtype=jnp.dtype(dtype))
    both = jax.jit(jax.grad(loss, has_aux=True))
    if not mesh:
        return both(theta)
    with jax.set_mesh(mesh_of(**dict(mesh))):
        return jax.device_get(both(theta))


def test_a_scale_multiplies_the_scores_of_whole_sequences_and_of_cached_latents():
    theta = cases.random_theta(CONFIG)
    scaled = theta._replace(variant=LATENT.but(attention=LATENT.attention.but(scale=0.3)))
    W = theta.layers.attention
    by_hand = W._replace(W_q=0.3 * 7**0.5 * W.W_q, W_qr=0.3 * 7**0.5 * W.W_qr)  # queries have 3 + 4 rows
    expected = d_logits(X, theta._replace(layers=theta.layers._replace(attention=by_hand)))
    cases.assert_close(d_logits(X, scaled), expected)
    cases.assert_close(read_tokens(scaled, empty_cache(CONFIG, 2), X, 0)[0], expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(dtype):
    gradients, hidden = computed(dtype)
    _, expected = computed("float64")
    assert hidden.dtype == dtype
    assert all(g.dtype == dtype and np.isfinite(g).all() for g in jax.tree.leaves(gradients))
    np.testing.assert_allclose(hidden.astype(float), expected, atol=0.05 * jnp.abs(expected).max())


@pytest.mark.parametrize("mesh", [(("data", 2), ("model", 4)), (("context", 3),)])
def test_a_mesh_changes_nothing(mesh):
    cases.assert_trees_close(computed("float64", *mesh), computed("float64"))
