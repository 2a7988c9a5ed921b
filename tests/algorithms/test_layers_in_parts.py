"""Parts of a model's layers compute what the whole model does, if the number of the first layer is given."""

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import PAPER, DTransformerConfig, d_hidden_state
from algorithms.lines import Attention
from tests import cases

WINDOWS = PAPER.but(attention=(Attention(), Attention(window=2)), final_norm=False)
"""Every second layer has a window of 2 tokens."""


def test_layers_in_parts_keep_their_numbers():
    config = DTransformerConfig(N_V=11, l_max=7, L=4, H=2, d_e=6, d_mlp=5, variant=WINDOWS)
    theta, x = cases.random_theta(config), jnp.array([3, 1, 4, 1, 5])
    first, rest = (
        theta._replace(layers=jax.tree.map(lambda a, part=part: a[part], theta.layers))
        for part in (slice(1), slice(1, 4))
    )
    X, whole = d_hidden_state(x, first), d_hidden_state(x, theta)
    cases.assert_close(d_hidden_state(X, rest, first_layer=1), whole)
    assert np.abs(d_hidden_state(X, rest) - whole).max() > 1e-3
