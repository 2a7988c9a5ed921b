"""Random nestings of JAX's transformations around a function: what they give is what a loop over examples gives."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import (
    UNIDIRECTIONAL,
    layer_norm,
    log_loss,
    padding,
    rms_norm,
    scaled_dot_product_attention,
    token_embedding,
    token_losses,
)
from algorithms.ops.activation import activate
from tests.cases import by
from tests.fuzz.comparing import assert_near, chance, normal, one_of

__all__ = ["check"]

D, L = 3, 5
W = jax.device_put(np.asarray(np.random.default_rng(0).standard_normal((7, D))))
TARGETS = jax.device_put(np.array([0, 6, 2, 2, 1]))
# name → a function of a matrix, a length and the implementation to a number
FUNCTIONS: dict[str, Callable[[Any, Any, str], Any]] = {
    "attention": lambda X, l, how: jnp.sin(
        scaled_dot_product_attention(X, jnp.cos(X), X, UNIDIRECTIONAL & padding(l), implementation=how)
    ).sum(),
    "loss": lambda X, l, how: (
        log_loss(X, W, TARGETS, weights=(jnp.arange(L) < l) * 1.5, label_smoothing=0.1, implementation=how) ** 2
    ),
    "losses": lambda X, l, how: (token_losses(X, W, TARGETS, cap=2.0, implementation=how)[l % L]) ** 2,
    "norms": lambda X, l, how: (
        layer_norm(X, X[:, 0], X[:, 1], epsilon=0.1, implementation=how)
        * rms_norm(X, X[:, 2], epsilon=0.1, implementation=how)
    )[:, l % L].sum(),
    "embedding": lambda X, l, how: (
        token_embedding(jnp.stack([l % L, l % L, (l + 1) % L]), X, implementation=how) ** 3
    ).sum(),
    "gelu": lambda X, l, how: (by(how, activate, "gelu", X) * by(how, activate, "silu", X))[:, l % L].sum(),
}


def check(rng: np.random.Generator) -> None:
    """One nesting of one function."""
    name, how = one_of(rng, *FUNCTIONS), one_of(rng, "paper", "dense", "blockwise", "strips", "auto")
    printed, f = (functools.partial(FUNCTIONS[name], how=h) for h in ("paper", how))
    kind = one_of(rng, "value", "gradient", "gradient", "gradient of the gradient")
    axes = tuple(int(n) for n in rng.integers(1, 4, size=rng.integers(1, 3)))
    X, lengths = normal(rng, *axes, D, L), jnp.asarray(rng.integers(L + 1, size=axes))
    direction = normal(rng, D, L)
    what = [f"{kind} of {name}, {how}"]
    g = _derived(f, kind, direction)
    for _ in axes:
        for _ in range(rng.integers(2)):
            g = one_of(rng, jax.jit, jax.checkpoint)(g)
        mapped = one_of(rng, jax.vmap, jax.vmap, _looped)
        g = mapped(g)
        what.append(mapped.__name__)
    if chance(rng, 0.7):
        g = jax.jit(g)
    actual = g(X, lengths)
    of_one = jax.jit(_derived(printed, kind, direction))
    expected = np.stack([np.asarray(of_one(X[i], lengths[i])) for i in np.ndindex(*axes)])
    assert_near(actual, expected.reshape(*axes, *expected.shape[1:]), 1e-9, " in ".join(what))


def _looped(g):
    """`g` of each example, one after another."""
    return lambda *arrays: jax.lax.map(lambda one: g(*one), arrays)


def _derived(f, kind, direction):
    if kind == "value":
        return f
    gradient = jax.grad(f)
    return gradient if kind == "gradient" else jax.grad(lambda X, l: jnp.vdot(gradient(X, l), direction))
