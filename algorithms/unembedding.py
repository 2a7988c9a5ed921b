"""Algorithm 7, and equation (2): the softmax over the rows of each column."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.checks import Axes
from algorithms.linear import product
from algorithms.notation import accumulation_dtype, as_columns
from algorithms.registry import algorithm

__all__ = ["logits", "softmax", "unembedding", "unembedding_columns"]


def _check_unembedding(e, W_u) -> None:
    axes = Axes()
    axes.check("e", e, "d_e")
    axes.check("W_u", W_u, "N_V d_e")


@algorithm(7, "Unembedding", check=_check_unembedding)
def unembedding(e: Float[Array, "d_e"], W_u: Float[Array, "N_V d_e"]) -> Float[Array, "N_V"]:
    """Algorithm 7: p ← softmax(W_u e). From a token's representation to a distribution over the vocabulary.

    Args:
        e: representation of one token.
        W_u: the unembedding matrix; a tied one is ``W_e.T``.

    Returns:
        p, which is positive and sums to 1, of the dtype of ``e``.

    Raises:
        TypeError: for arrays that are not floating-point.
        ValueError: for shapes that disagree.

    Departures: none (the largest logit is subtracted before the exponential, which changes no value).

    Example:
        >>> import jax.numpy as jnp
        >>> unembedding(jnp.array([1.0]), jnp.zeros((4, 1))).tolist()
        [0.25, 0.25, 0.25, 0.25]

    Source: Phuong and Hutter 2022, Algorithm 7.
    """
    p = unembedding_columns(e, W_u)  # line 1
    return p


def unembedding_columns(
    X: Float[Array, "d_e *columns"], W_u: Float[Array, "N_V d_e"], b_u: Float[Array, "N_V"] | None = None
) -> Float[Array, "N_V *columns"]:
    """``P = softmax(W_u X)``, Algorithm 7 of every column; ``b_u`` is BERT's output bias."""
    return softmax(logits(X, W_u, b_u)).astype(X.dtype)


def logits(
    X: Float[Array, "d_e *columns"], W_u: Float[Array, "N_V d_e"], b_u: Float[Array, "N_V"] | None = None
) -> Float[Array, "N_V *columns"]:
    """``W_u X (+ b_u 1ᵀ)``, in float32 at least."""
    dtype = accumulation_dtype(X.dtype)
    Y = product(W_u, X, dtype)
    return Y if b_u is None else Y + as_columns(b_u, Y).astype(dtype)


def softmax(A: Float[Array, "rows *columns"]) -> Float[Array, "rows *columns"]:
    """``exp A[i, t] / Σ_j exp A[j, t]`` over the rows of each column; 0 in a column that is −∞ throughout.

    Source: Phuong and Hutter 2022, equation (2).
    """
    largest = A.max(axis=0, keepdims=True)
    numerator = jnp.exp(A - jax.lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0, largest)))
    denominator = numerator.sum(axis=0, keepdims=True)
    return numerator / jnp.where(denominator == 0, 1, denominator)
