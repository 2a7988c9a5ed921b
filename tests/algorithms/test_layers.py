"""The loop over the layers: each layer gets its own parameters, and each of its draws its own key."""

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.layers import for_each_layer

L, DRAWS = 4, 3


def test_every_draw_of_every_layer_has_its_own_key():
    def layer(X, l, keys):
        for i, key in enumerate(keys):
            X = X.at[i, l].set(jax.random.uniform(key, dtype=X.dtype))
        return X

    drawn = for_each_layer(layer, jnp.zeros((DRAWS, L)), jnp.arange(L), key=jax.random.key(0), draws=DRAWS)
    assert np.unique(drawn).size == L * DRAWS


def test_the_layers_follow_each_other():
    def layer(X, l, factor, keys):
        assert keys == [None] * 2
        return factor * X + l

    X = for_each_layer(layer, jnp.zeros((1, 1)), jnp.arange(4.0), 10, key=None)
    assert X.item() == 123.0
