"""Rotations of pairs of rows, for rotary positions, with their backward pass."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.options import hand_derived


def _rotated(
    pairs: str,
    X: Float[Array, "H d *columns"],
    cos: Float[Array, "half *#columns"],
    sin: Float[Array, "half *#columns"],
) -> Float[Array, "H d *columns"]:
    """``[U cos − V sin; U sin + V cos]``, where U and V are the first and the second rows of all pairs.

    The pairs are rows i and i + d/2 (``"halves"``), 2i and 2i + 1 (``"neighbors"``), or i + d/2 and i
    (``"halves_swapped"``).
    """
    H, d, *columns = X.shape
    shape, axis = ((H, d // 2, 2, *columns), 2) if pairs == "neighbors" else ((H, 2, d // 2, *columns), 1)
    sin = -sin if pairs == "halves_swapped" else sin
    U, V = jnp.moveaxis(X.reshape(shape), axis, 0).astype(cos.dtype)
    cos, sin = cos[None], sin[None]
    return jnp.stack([U * cos - V * sin, U * sin + V * cos], axis=axis).reshape(X.shape).astype(X.dtype)


def _forward(pairs, X, cos, sin):
    return _rotated(pairs, X, cos, sin), (cos, sin)


def _backward(pairs, residuals, dY):
    """``∂F/∂X[:, t] = R_tᵀ dY[:, t] = R_{−t} dY[:, t]``: the rotation back. The angles are not differentiated."""
    cos, sin = residuals
    return _rotated(pairs, dY, cos, -sin), jnp.zeros_like(cos), jnp.zeros_like(sin)


rotate = hand_derived(_forward, _backward, static=(0,), value=_rotated)
