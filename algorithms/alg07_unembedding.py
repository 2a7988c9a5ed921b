"""Algorithm 7, and the matrix that it unembeds with."""

from typing import Any

from jax import Array
from jaxtyping import Float

from algorithms.ops.linear import logits
from algorithms.ops.softmax import softmax


def unembedding(
    e: Float[Array, "d_e *batch"], W_u: Float[Array, "N_V d_e"], *, b_u: Float[Array, "N_V"] | None = None
) -> Float[Array, "N_V *batch"]:
    """Algorithm 7: p ← softmax(W_u e). From a token's representation to a distribution over the vocabulary.

    ``b_u`` is an output bias as BERT has it, p ← softmax(W_u e + b_u); the paper has none.

    Departures: none (the largest logit is subtracted before the exponential, which changes no value).

    Example:
        >>> import jax.numpy as jnp
        >>> unembedding(jnp.array([1.0]), jnp.zeros((4, 1))).tolist()
        [0.25, 0.25, 0.25, 0.25]

    Source: Phuong and Hutter 2022, Algorithm 7.
    """
    p = softmax(logits(e, W_u, b_u)).astype(e.dtype)  # line 1
    return p


def unembedding_matrix(theta: Any) -> Float[Array, "N_V d"]:
    """``W_u`` of a transformer's parameters, or ``W_eᵀ`` where it is tied."""
    return theta.W_e.T if theta.W_u is None else theta.W_u
