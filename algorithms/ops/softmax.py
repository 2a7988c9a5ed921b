"""Equation (2), the softmax over the rows of each column; and the cap of scores."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def softmax(A: Float[Array, "rows *columns"] | Any) -> Any:
    """``exp A[i, t] / Σ_j exp A[j, t]`` over the rows of each column; 0 in a column that is all −∞, or empty.

    Scores that wait for their product with values, `LazyScores`, go on waiting.

    Source: Phuong and Hutter 2022, equation (2).
    """
    waits = getattr(A, "softmax", None)
    if waits is not None:
        return waits()
    numerator = jnp.exp(shifted(A))
    denominator = numerator.sum(axis=0, keepdims=True)
    return numerator / jnp.where(denominator == 0, 1, denominator)


def log_softmax(A: Float[Array, "rows *columns"]) -> Float[Array, "rows *columns"]:
    """The logarithm of ``softmax``, without underflow; −∞ in a column that is all −∞."""
    A = shifted(A)
    denominator = jnp.exp(A).sum(axis=0, keepdims=True)
    return A - jnp.log(jnp.where(denominator == 0, 1, denominator))


def shifted(A: Float[Array, "rows *columns"]) -> Float[Array, "rows *columns"]:
    """A minus the largest entry of each column, which changes neither the softmax nor its derivative."""
    largest = A.max(axis=0, keepdims=True, initial=-jnp.inf)
    return A - jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0, largest))


def capped(S: Float[Array, "*shape"], cap: float | None, d_attn: int = 1) -> Float[Array, "*shape"]:
    """``c √d_attn tanh(S/(c √d_attn))``: scores or logits whose size, after division by √d_attn, is at most c.

    Source: Gemma Team 2024, section 2.
    """
    if cap is None:
        return S
    c = cap * d_attn**0.5
    return c * jnp.tanh(S / c)


def capped_derivative(S: Float[Array, "*shape"], cap: float) -> Float[Array, "*shape"]:
    """``1 − tanh²(S/c)``, the derivative of ``c tanh(S/c)``."""
    return 1 - jnp.square(jnp.tanh(S / cap))
