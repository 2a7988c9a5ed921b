"""The linear map with a bias, ``W X + b 1ᵀ``, which every weight matrix of the paper takes part in."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.notation import as_columns

__all__ = ["linear"]


def linear(
    W: Float[Array, "*rows d_in"], X: Float[Array, "d_in *columns"], b: Float[Array, "*rows"]
) -> Float[Array, "..."]:
    """``W X + b 1ᵀ``: the same affine map of every column.

    Args:
        W: the weights; several stacked ones (the heads of an attention) act as one matrix of more rows.
        X: the columns.
        b: the bias.

    Source: lines 1-3 of Algorithm 4, and every other affine line.
    """
    Y = jnp.tensordot(W, X, 1)
    return Y + as_columns(b, Y)
