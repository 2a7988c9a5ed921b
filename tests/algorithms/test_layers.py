"""The loop over the layers: the keys of each, and what its backward pass recomputes on a GPU."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import PAPER, DTransformerConfig, d_hidden_state, layers
from algorithms.layers import lines_of
from algorithms.machinery.options import using
from tests import cases

L, TOKENS = 4, jax.device_put(np.zeros(1, int))


def test_every_draw_of_every_layer_has_its_own_key():
    f = lines_of("Algorithm 10", TOKENS, type("theta", (), {"distances": None, "variant": PAPER}))
    with using(key=jax.random.key(0)):

        @f.each_layer(jnp.zeros((2, L)), jnp.arange(L))
        def drawn(X, l, f):
            for i in range(2):
                X = X.at[i, l].set(jax.random.uniform(f._key(i), dtype=X.dtype))
            return X

    assert np.unique(drawn).size == L * 2


@pytest.mark.thorough
def test_on_a_gpu_norms_and_activations_are_computed_again_but_no_product(monkeypatch):
    """As many products, less memory, the same gradients; unrolled, nothing is computed again."""
    theta = cases.random_theta(DTransformerConfig(N_V=11, l_max=64, L=2, H=2, d_e=4, d_mlp=32))
    x = cases.random_tokens(4, 64, n=11)

    def gradient(unroll=False):
        jax.clear_caches()
        options = {"unroll": unroll, "implementation": "blockwise"}
        return jax.jit(jax.grad(lambda theta: jnp.square(d_hidden_state(x, theta, **options)).sum())).trace(theta)

    stored = gradient()
    monkeypatch.setattr(layers, "platform_of", lambda _: "gpu")
    again, unrolled = gradient(), gradient(unroll=True)
    assert str(again.jaxpr).count("dot_general[") == str(stored.jaxpr).count("dot_general[")
    assert "prevent_cse" in str(again.jaxpr)
    assert "prevent_cse" not in str(unrolled.jaxpr)
    programs = [traced.lower().compile() for traced in (again, stored)]
    memory = [program.memory_analysis().temp_size_in_bytes for program in programs]
    assert memory[0] < 0.9 * memory[1]
    chex.assert_trees_all_close(*(program(theta) for program in programs), rtol=1e-10, atol=1e-13)
