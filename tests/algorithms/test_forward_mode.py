"""Forward mode of the hand-derived rules is refused by JAX; `test_derivatives` has the values of reverse mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import DTransformerConfig, d_token_losses, d_transformer
from algorithms.machinery.options import hand_derived
from tests import cases

THETA = cases.random_theta(DTransformerConfig(L=2, **cases.TINY))
V = jax.device_put(jax.tree.map(np.ones_like, THETA))
x = cases.random_tokens(5, n=7)


def by_public_function(theta):
    return d_token_losses(x, theta).sum()


def by_jit(theta):
    return jax.jit(lambda theta: jnp.log(d_transformer(x, theta)).sum())(theta)


def by_scan(theta):
    return jax.lax.scan(lambda total, _: (total + by_jit(theta), None), 0.0, length=2)[0]


LOSSES = {of.__name__: of for of in (by_public_function, by_jit, by_scan)}


def pushed(loss, theta, v):
    return jax.jvp(loss, (theta,), (v,))[1]


FORWARD = {
    "jvp": lambda loss: pushed(loss, THETA, V),
    "jit of jvp": lambda loss: jax.jit(lambda theta: pushed(loss, theta, V))(THETA),
    "linearize": lambda loss: jax.linearize(loss, THETA)[1](V),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("mode", FORWARD)
def test_forward_mode_is_refused(mode, loss):
    with pytest.raises(TypeError, match=r"forward-mode .* to a custom_vjp function"):
        FORWARD[mode](LOSSES[loss])


def test_a_value_that_is_not_differentiated_may_move():
    """Forward over reverse, where reverse mode is by some arguments of a rule only, and forward mode by the others."""
    product = hand_derived(lambda a, b: (a * b, (a, b)), lambda kept, g: (g * kept[1], g * kept[0]))
    assert jax.jvp(lambda b: jax.grad(product)(2.0, b), (3.0,), (1.0,)) == (3.0, 1.0)
