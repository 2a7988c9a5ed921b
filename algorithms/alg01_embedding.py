"""Algorithms 1, 2 and 7: tokens and positions as vectors, and vectors as distributions over tokens."""

from typing import Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import algorithm
from algorithms.notation import Cap, PrintedChoice
from algorithms.ops.activation import capped, softmax
from algorithms.ops.linear import columns, logits


@algorithm(1, "Token embedding")
def token_embedding(
    v: Integer[AnyArray, "*batch"] | int, W_e: Float[AnyArray, "d_e N_V"], **options: Unpack[PrintedChoice]
) -> Float[Array, "d_e *batch"]:
    """Algorithm 1: e ← W_e[:, v]. The vector representation of a token; of several tokens, the columns of a matrix.

    Departures: IDs start at 0; an ID outside [0, N_V) gives NaN.

    Example:
        >>> token_embedding(2, jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).tolist()
        [3.0, 6.0]
    """
    W_e = columns(W_e)
    e = W_e[:, v]  # return
    return e


@algorithm(2, "Positional embedding")
def positional_embedding(
    l: Integer[AnyArray, "*batch"] | int, W_p: Float[AnyArray, "d_e l_max"], **options: Unpack[PrintedChoice]
) -> Float[Array, "d_e *batch"]:
    """Algorithm 2: e_p ← W_p[:, ℓ]. The vector representation of a position; of several, the columns of a matrix.

    W_p is learned, or comes from ``sinusoidal_positional_embedding``.
    Departures: positions start at 0; one outside [0, l_max) gives NaN.

    Example:
        >>> positional_embedding(0, jnp.array([[1.0, 2.0], [4.0, 5.0]])).tolist()
        [1.0, 4.0]
    """
    W_p = columns(W_p)
    e_p = W_p[:, l]  # return
    return e_p


def sinusoidal_positional_embedding(
    d_e: int, l_max: int, *, base: float | None = None, dtype: DTypeLike = jnp.float32
) -> Float[Array, "d_e l_max"]:
    """A hard-coded W_p of sines and cosines, in either of its published forms.

    The paper's form, with i = 1 … d_e/2 and t = 1 … ℓ_max (``base=None``)::

        W_p[2i−1, t] = sin(t/ℓ_max^{2i/d_e}),   W_p[2i, t] = cos(t/ℓ_max^{2i/d_e})

    The form of Vaswani et al. 2017, in which i and t start at 0 (``base=10000``)::

        W_p[2i, t] = sin(t/10000^{2i/d_e}),   W_p[2i+1, t] = cos(t/10000^{2i/d_e})

    Args:
        d_e: number of dimensions, even.
        l_max: number of positions.
        base: None for the paper's form, otherwise the base of Vaswani's.
        dtype: of the result; angles are computed in float64.

    Raises:
        ValueError: if d_e is odd or not positive, l_max is not positive, or base is not above 1.

    Example:
        >>> sinusoidal_positional_embedding(2, 2, base=10000).round(3).tolist()
        [[0.0, 0.8410000205039978], [1.0, 0.5400000214576721]]

    Source: Phuong and Hutter 2022, above Algorithm 2; Vaswani et al. 2017, section 3.5.
    """
    if d_e < 2 or d_e % 2:
        raise ValueError(f"d_e: expected a positive even number, a sine and a cosine for each frequency, got {d_e}")
    if l_max < 1:
        raise ValueError(f"l_max: expected a positive number of positions, got {l_max}")
    if base is not None and not base > 1:
        raise ValueError(f"base: expected a number above 1 such as 10000, or None for the paper's form, got {base}")
    first = 1 if base is None else 0
    W_p = sinusoid(np.arange(first, first + l_max), d_e, base=l_max if base is None else base, first=first)
    return jnp.asarray(W_p, dtype)


def sinusoid(
    t: np.ndarray | Array,
    d_e: int,
    *,
    base: float,
    first: int = 0,
    form: str = "sinusoidal",
    dtype: DTypeLike = np.float64,
) -> np.ndarray | Array:
    """``sin(t/base^{2i/d_e})`` and ``cos(…)`` for i = first, first + 1, …: one column per position t.

    NumPy positions are computed in float64 by NumPy, others in ``dtype``. ``form``, one of `Embedding.positions`, says
    whether sines and cosines alternate or take half of the rows each.
    """
    xp = np if isinstance(t, np.ndarray) else jnp
    i = np.arange(first, first + d_e // 2, dtype=np.float64)
    wavelength = (float(base) ** (2 * i / d_e)).reshape(-1, *(1,) * t.ndim)
    angle = t[None].astype(dtype) / wavelength.astype(dtype)
    axis = 1 if form == "sinusoidal" else 0
    return xp.stack([xp.sin(angle), xp.cos(angle)], axis=axis).reshape(d_e, *t.shape)


@algorithm(7, "Unembedding")
def unembedding(
    e: Float[AnyArray, "d_e *batch"],
    W_u: Float[AnyArray, "N_V d_e"],
    *,
    b_u: Float[AnyArray, "N_V"] | None = None,
    cap: Cap = None,
) -> Float[Array, "N_V *batch"]:
    """Algorithm 7: p ← softmax(W_u e). Turns a token's representation into a distribution over the vocabulary.

    Not in the paper: an output bias b_u, p ← softmax(W_u e + b_u), as in BERT; and a ``cap``, as in Gemma.
    Departures: none (subtracting the largest logit before the exponential changes no value). For bfloat16 and float16
    arrays, probabilities are float32, so that few of them are equal.

    Example:
        >>> unembedding(jnp.array([1.0]), jnp.zeros((4, 1))).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    p = softmax(capped(logits(e, W_u, b_u), cap))  # line 1
    return p
