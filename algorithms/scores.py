"""Lines 4 and 5 of Algorithm 4: the scores, their softmax, and which implementation of it serves."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from algorithms.batching import mask_axes
from algorithms.dropout import TILE, fold_in, kept_weights
from algorithms.masks import Mask, StructuralMask
from algorithms.notation import accumulation_dtype
from algorithms.unembedding import softmax

__all__ = ["IMPLEMENTATIONS", "attend", "attend_as_printed"]

IMPLEMENTATIONS = ("auto", "paper")
"""Names of the implementations: ``"paper"``, the lines as printed, and ``"auto"``, the fastest that is exact."""


def attend(
    Q: Float[Array, "... l_x"],
    K: Float[Array, "... l_z"],
    V: Float[Array, "... l_z"],
    mask: Mask,
    batch_axes: int,
    implementation: str,
    dropout: float,
    key: Key[Array, "*batch"] | None,
) -> Float[Array, "... l_x"]:
    """Lines 4 to the end of Algorithm 4, of every head and every sequence.

    Args:
        Q: queries; the heads, if any, are axis 0.
        K: keys.
        V: values.
        mask: one for all heads; one for all sequences, or one for each.
        batch_axes: how many batch axes there are.
        implementation: one of ``IMPLEMENTATIONS``.
        dropout: probability to drop an attention weight.
        key: one for each sequence; a head h draws with ``fold_in(key, h)``.
    """
    one = functools.partial(attend_as_printed, dropout=dropout)
    for _ in range(batch_axes):
        one = jax.vmap(one, in_axes=(1, 1, 1, mask_axes(mask), None if key is None else 0), out_axes=1)
    if Q.ndim - batch_axes == 2:
        return one(Q, K, V, mask, key)

    def of_head(Q, K, V, h):
        return one(Q, K, V, mask, fold_in(key, h))

    return jax.vmap(of_head)(Q, K, V, jnp.arange(Q.shape[0]))


def attend_as_printed(
    Q: Float[Array, "d_attn l_x"],
    K: Float[Array, "d_attn l_z"],
    V: Float[Array, "d_mid l_z"],
    mask: Mask,
    key: Key[Array, ""] | None,
    *,
    dropout: float,
) -> Float[Array, "d_mid l_x"]:
    """The lines as printed, differentiable by JAX to any order and in forward mode."""
    d_attn, l_x = Q.shape
    l_z = K.shape[1]
    Mask = mask.dense(l_z, l_x) if isinstance(mask, StructuralMask) else mask
    S = jnp.matmul(K.T, Q, preferred_element_type=accumulation_dtype(Q.dtype))  # line 4
    S = jnp.where(Mask, S, -jnp.inf)  # line 5
    A = softmax(S / jnp.sqrt(d_attn).astype(S.dtype))  # return
    if key is not None and dropout > 0:
        kept = kept_weights(key, dropout, (0, 0), (-(-l_z // TILE), -(-l_x // TILE)))[:l_z, :l_x]
        A = jnp.where(kept, A / (1 - dropout), 0)
    V_tilde = (V @ A).astype(V.dtype)  # return
    return V_tilde
