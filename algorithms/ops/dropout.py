"""Random draws that depend only on their own key: dropout of activations, and of attention weights.

Attention draws each block again from the same seed. Source: Radu 2026, §12.9: rate 0.1 after the attention weights and
after the activations of the MLP.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer, Key, UInt32

from algorithms.machinery.options import dropout_key, static


def by_own_key(draw: Callable[..., Any]) -> Callable[..., Any]:
    """``draw``, whose first argument is a key, such that under ``jax.vmap`` each key draws the same values as alone.

    Keys of JAX's default generator already do. With XLA's generators (``impl="rbg"`` and ``"unsafe_rbg"``), a whole
    batch would be drawn from the first key, so its draws are made one after another.
    """
    one_after_another = jax.custom_batching.sequential_vmap(draw)

    def drawn(key: Key[Array, ""], *arguments):
        is_default = jax.random.key_impl(key) == "threefry2x32"
        return (draw if is_default else one_after_another)(key, *arguments)

    return drawn


K = TypeVar("K", bound=Array | None)


def fold_in(key: K, data: int | Integer[Array, ""]) -> K:
    """``jax.random.fold_in``, for every key of a batch; None stays None."""
    if key is None:
        return key
    fold: Any = by_own_key(jax.random.fold_in)
    for _ in range(key.ndim):
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(key, data)


def dropout(X: Float[Array, "d *columns"]) -> Float[Array, "d *columns"]:
    """X ``[d, *batch, l]`` with each entry set to 0 with the rate of the dropout, and the others divided by 1 − rate.

    Without a key, X is unchanged.
    """
    rate, key = static.value.dropout, dropout_key.get()
    if key is None or rate == 0:
        return X

    def draw(seed):
        return keep_mask(seed, rate, jnp.arange(X.shape[0]), jnp.arange(X.shape[-1]))

    for _ in range(key.ndim):
        draw = jax.vmap(draw, out_axes=1)
    return jnp.where(draw(seed_of(key)), X / (1 - rate), 0)


def seed_of(key: Key[Array, "*batch"]) -> UInt32[Array, "*batch 2"]:
    """Two random words from each key, the seed from which ``keep_mask`` draws a matrix."""
    draw = by_own_key(lambda key: jax.random.bits(key, (2,), jnp.uint32))
    for _ in range(key.ndim):
        draw = jax.vmap(draw)
    return draw(key)


def keep_mask(
    seed: UInt32[Array, "2"], rate: float, rows: Integer[Array, "m"], columns: Integer[Array, "n"]
) -> Bool[Array, "m n"]:
    """Whether each entry of a matrix is kept: entry (i, j) depends only on the seed, i and j.

    An entry's random word is a hash of a word of its row and a word of its column. On a CPU this costs a thirtieth of
    ``jax.random.bernoulli``, and no memory if XLA fuses it into its use.
    """
    word_of_row, word_of_column = (
        _mixed(word + indices.astype(jnp.uint32)) for word, indices in zip(seed, (rows, columns), strict=True)
    )
    word = _mixed(word_of_row[:, None] ^ word_of_column[None, :])
    return word >= jnp.uint32(int(rate * 2**32))


def _mixed(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A 32-bit hash, each bit of which depends on every input bit: *lowbias32* of Wellons' hash prospector (2018)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
