"""The logits W_u X, a chunk at a time: the sizes of chunks, rows of padding, and the likeliest token."""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer

from algorithms.machinery.arrays import are_numbers, as_columns
from algorithms.machinery.platform import platform_of
from algorithms.machinery.sharding import Shares
from algorithms.ops.linear import logits
from algorithms.ops.softmax import capped

LOGITS_AT_ONCE = {"cpu": 2**21, "other": 2**29}
"""How many logits a device holds at once: on a CPU, as many as fit in its cache; elsewhere, 2 GiB in float32.

If all logits fit, XLA sees that the backward pass recomputes the same ones, and keeps them.
"""

LANES = 128
"""Larger chunks are whole multiples of this, the width of a TPU's registers."""


def logits_at_once(X: Array) -> int:
    """How many logits of the columns X a device may hold at once."""
    return LOGITS_AT_ONCE.get(platform_of(X), LOGITS_AT_ONCE["other"])


def chunk_size(X: Array, n: int, *of_each: int) -> int:
    """How many of n rows or columns of the logits of X to compute at once; all n if a size is symbolic.

    Each row or column has as many logits as the product of ``of_each``.
    """
    if not are_numbers(n, *of_each):
        return n
    fitting = max(1, logits_at_once(X) // max(1, math.prod(of_each)))
    if fitting >= n:
        return n
    unit = min(fitting, LANES)
    even = -(-n // chunk_count(n, fitting // unit * unit))
    return -(-even // unit) * unit


def chunk_count(n: int, at_once: int) -> int:
    """How many chunks of this size hold n rows or columns."""
    return 1 if at_once is n else -(-n // max(1, at_once))


def is_token(first: int | Array, N_V: int, Y: Float[Array, "rows *columns"]) -> Bool[Array, "rows *ones"]:
    """Whether each row of logits, starting at row ``first``, belongs to a token and is not padding."""
    return as_columns(first + jnp.arange(Y.shape[0]) < N_V, Y)


def logits_of_rows(
    n: int,
    N_V: int,
    first: int | Array,
    X: Float[Array, "d_e *columns"],
    W: Array,
    b: Array | None,
    cap: float | None = None,
) -> Float[Array, "rows *columns"]:
    """Some of n rows of logits, starting at row ``first``; W and b contain only these rows.

    Rows of padding, after the N_V tokens, are −∞. With a cap c the logits are ``c tanh(Y/c)``.
    """
    Y = capped(logits(X, W, b), cap)
    return jnp.where(is_token(first, N_V, Y), Y, -jnp.inf) if n > N_V else Y


def likeliest(
    X: Float[Array, "d_e B l"], W_u: Float[Array, "n d_e"], b_u: Float[Array, "n"] | None, N_V: int | None = None
) -> Integer[Array, "B l"]:
    """The token of the largest logit of every column; rows of W_u after the first N_V are padding."""
    shares, n = Shares.of(W_u, X), W_u.shape[0]

    def of_device(X, W_u, b_u):
        first = shares.first_row(W_u.shape[0])

        def of_sequence(X):  # one sequence after another, since the logits of all would be a huge array
            Y = logits_of_rows(n, n if N_V is None else N_V, first, X, W_u, b_u)
            return Y.max(axis=0), first + jnp.argmax(Y, axis=0)

        largest, token = jax.lax.map(of_sequence, jnp.moveaxis(X, 1, 0))
        return -shares.max_over_rows(jnp.where(largest == shares.max_over_rows(largest), -token, -n))

    return shares.each(of_device, X, W_u, b_u, out=shares.of_columns())
