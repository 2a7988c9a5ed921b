"""Algorithms 1 and 2: what a token and what a position looks like as a vector."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from algorithms.checks import Axes, check_tokens
from algorithms.notation import accumulation_dtype
from algorithms.registry import algorithm
from algorithms.reverse_mode import is_hand_derived, reverse_only

__all__ = ["lookup", "positional_embedding", "sinusoidal_positional_embedding", "token_embedding"]


def _check_token_embedding(v, W_e) -> None:
    check_tokens("v", v if hasattr(v, "shape") else jnp.asarray(v), axes="")
    Axes().check("W_e", W_e, "d_e N_V")


def _check_positional_embedding(l, W_p) -> None:
    check_tokens("l", l if hasattr(l, "shape") else jnp.asarray(l), axes="")
    Axes().check("W_p", W_p, "d_e l_max")


@algorithm(1, "Token embedding", check=_check_token_embedding)
def token_embedding(v: Int[Array, ""] | int, W_e: Float[Array, "d_e N_V"]) -> Float[Array, "d_e"]:
    """Algorithm 1: e ← W_e[:, v]. The vector representation of a token.

    Args:
        v: a token ID in [0, N_V).
        W_e: the token embedding matrix.

    Returns:
        e; NaN for an ID outside [0, N_V), which can not be raised in compiled code.

    Raises:
        TypeError: if v is no integer, or W_e is not floating-point.
        ValueError: if v is no scalar (``jax.vmap`` over a sequence), or W_e is no matrix.

    Departures: IDs start at 0.

    Example:
        >>> import jax.numpy as jnp
        >>> token_embedding(2, jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).tolist()
        [3.0, 6.0]

    Source: Phuong and Hutter 2022, Algorithm 1.
    """
    e = lookup(W_e, v)  # return
    return e


@algorithm(2, "Positional embedding", check=_check_positional_embedding)
def positional_embedding(l: Int[Array, ""] | int, W_p: Float[Array, "d_e l_max"]) -> Float[Array, "d_e"]:
    """Algorithm 2: e_p ← W_p[:, ℓ]. The vector representation of a position.

    Args:
        l: a position in [0, l_max).
        W_p: the positional embedding matrix, learned, or from ``sinusoidal_positional_embedding``.

    Returns:
        e_p; NaN for a position outside [0, l_max), which can not be raised in compiled code.

    Raises:
        TypeError: if l is no integer, or W_p is not floating-point.
        ValueError: if l is no scalar (``jax.vmap`` over positions), or W_p is no matrix.

    Departures: positions start at 0.

    Example:
        >>> import jax.numpy as jnp
        >>> positional_embedding(0, jnp.array([[1.0, 2.0], [4.0, 5.0]])).tolist()
        [1.0, 4.0]

    Source: Phuong and Hutter 2022, Algorithm 2.
    """
    e_p = lookup(W_p, l)  # return
    return e_p


def sinusoidal_positional_embedding(
    d_e: int, l_max: int, *, base: float | None = None, dtype: DTypeLike = jnp.float32
) -> Float[Array, "d_e l_max"]:
    """A hard-coded W_p of sines and cosines, in either of its published forms.

    The paper's, with i = 1 … d_e/2 and t = 1 … ℓ_max (``base=None``)::

        W_p[2i−1, t] = sin(t/ℓ_max^{2i/d_e}),   W_p[2i, t] = cos(t/ℓ_max^{2i/d_e})

    that of Vaswani et al. 2017, which counts both from 0 (``base=10000``)::

        W_p[2i, t] = sin(t/10000^{2i/d_e}),   W_p[2i+1, t] = cos(t/10000^{2i/d_e})

    Args:
        d_e: dimensions, an even number.
        l_max: positions.
        base: None for the paper's form, otherwise the base of the other one.
        dtype: of the result; angles are formed in float64 before.

    Raises:
        ValueError: if d_e is odd or not positive, l_max is not positive, or base is not above 1.

    Example:
        >>> sinusoidal_positional_embedding(2, 2, base=10000).round(3).tolist()
        [[0.0, 0.8410000205039978], [1.0, 0.5400000214576721]]

    Source: Phuong and Hutter 2022, above Algorithm 2; sources/003, §12.3.1.
    """
    if d_e < 2 or d_e % 2:
        raise ValueError(f"d_e: expected a positive even number, a sine and a cosine for each frequency, got {d_e}")
    if l_max < 1:
        raise ValueError(f"l_max: expected a positive number of positions, got {l_max}")
    if base is not None and not base > 1:
        raise ValueError(f"base: expected a number above 1 such as 10000, or None for the paper's form, got {base}")
    first = 1 if base is None else 0
    i = np.arange(first, first + d_e // 2, dtype=np.float64)[:, None]
    t = np.arange(first, first + l_max, dtype=np.float64)[None, :]
    angle = t / (l_max if base is None else base) ** (2 * i / d_e)
    W_p = np.stack([np.sin(angle), np.cos(angle)], axis=1).reshape(d_e, l_max)
    return jnp.asarray(W_p, dtype)


def lookup(
    W: Float[Array, "d_e n"], v: Int[Array, "*shape"] | int, implementation: str = "paper"
) -> Float[Array, "d_e *shape"]:
    """``W[:, v]`` for an array of indices: NaN, never another column, for an index outside [0, n)."""
    n = W.shape[1]
    v = jnp.asarray(v).astype(int)
    v = jnp.where((v < 0) | (v > n), n, v)  # indexing would count from the end, and wrap 2**32 to 0
    return _lookup(reverse_only(W), v) if is_hand_derived(implementation) else _as_printed(W, v)


def _as_printed(W, v):
    return W.at[:, v].get(mode="fill", fill_value=jnp.nan)


_lookup = jax.custom_vjp(_as_printed)


def _forward(W, v):
    return _as_printed(W, v), (W, v)


def _backward(residuals, dE):
    """A column of W gets the sum of the gradients of all places where its token stands::

        ∂F/∂W[:, j] = Σ_{t: v[t] = j} dE[:, t]

    which for a small vocabulary is faster as the product of dE and the one-hot matrix of v.

    Source: sources/003, §12.4.8.
    """
    W, v = residuals
    d_e, n = W.shape
    dE, v = dE.reshape(d_e, -1).astype(accumulation_dtype(dE.dtype)), v.reshape(-1)
    if n <= ONE_HOT_LIMIT:
        dW = dE @ jax.nn.one_hot(v, n, dtype=dE.dtype)
    else:
        dW = jnp.zeros((n, d_e), dE.dtype).at[v].add(dE.T, mode="drop").T
    return dW.astype(W.dtype), None


_lookup.defvjp(_forward, _backward)

ONE_HOT_LIMIT = 1024
"""Vocabulary up to which the gradient of the embedding is a matrix product instead of a scatter."""
