"""Forward mode of the hand-derived rules: refused by JAX; reverse mode passes everywhere.

``docs/research.md`` says what works; `test_derivatives` checks the values.
"""

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


def by_public_function(theta, implementation="auto"):
    return d_token_losses(x, theta, implementation=implementation).sum()


def by_jit(theta, implementation="auto"):
    return jax.jit(lambda theta: jnp.log(d_transformer(x, theta, implementation=implementation)).sum())(theta)


def by_checkpoint(theta, implementation="auto"):
    return jax.checkpoint(lambda theta: by_public_function(theta, implementation))(theta)


def by_scan(theta, implementation="auto"):
    return jax.lax.scan(lambda total, _: (total + by_jit(theta, implementation), None), 0.0, length=2)[0]


LOSSES = {of.__name__: of for of in (by_public_function, by_jit, by_checkpoint, by_scan)}
LOSSES["by_blocks"] = lambda theta, implementation="blockwise": by_public_function(theta, implementation)
LOSSES["by_strips"] = lambda theta, implementation="strips": by_public_function(theta, implementation)


def pushed(loss, theta, v):
    return jax.jvp(loss, (theta,), (v,))[1]


def moved(theta, step):
    return jax.tree.map(lambda a, b: a + step * b, theta, V)


FORWARD = {
    "jvp": lambda loss: pushed(loss, THETA, V),
    "jit of jvp": lambda loss: jax.jit(lambda theta: pushed(loss, theta, V))(THETA),
    "linearize": lambda loss: jax.linearize(loss, THETA)[1](V),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("loss", ["by_public_function", "by_jit", "by_scan"])
@pytest.mark.parametrize("mode", FORWARD)
def test_forward_mode_is_refused(mode, loss):
    with pytest.raises(TypeError, match=r"forward-mode .* to a custom_vjp function"):
        FORWARD[mode](LOSSES[loss])


REVERSE = {
    "grad": lambda loss: jax.grad(loss)(THETA),
    "jit of grad": lambda loss: jax.jit(jax.grad(loss))(THETA),
    "vmap of grad": lambda loss: jax.vmap(lambda s: jax.grad(lambda t: loss(moved(t, s)))(THETA))(jnp.arange(2.0)),
    "grad of vmap": lambda loss: jax.grad(lambda t: jax.vmap(lambda s: loss(moved(t, s)))(jnp.arange(2.0)).sum())(
        THETA
    ),
    "transposed linearization": lambda loss: jax.linear_transpose(jax.linearize(loss, THETA)[1], THETA)(1.0)[0],
    "forward over reverse": lambda loss: pushed(jax.grad(loss), THETA, V),
    "reverse over reverse": lambda loss: jax.grad(lambda t: jax.vjp(jax.grad(loss), t)[1](V)[0].W_e.sum())(THETA),
}


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("mode", REVERSE)
def test_reverse_mode_is_that_of_the_lines_as_printed(mode, loss):
    expected = REVERSE[mode](lambda theta: LOSSES[loss](theta, "paper"))
    for a, b in zip(jax.tree.leaves(REVERSE[mode](LOSSES[loss])), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-10)


def test_a_value_that_is_not_differentiated_may_move():
    """Forward over reverse, where reverse mode is by some arguments of a rule only, and forward mode by the others."""
    product = hand_derived(lambda a, b: (a * b, (a, b)), lambda kept, g: (g * kept[1], g * kept[0]))
    assert jax.jvp(lambda b: jax.grad(product)(2.0, b), (3.0,), (1.0,)) == (3.0, 1.0)
