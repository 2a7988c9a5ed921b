"""Dropout from a key: of activations, and of attention weights in tiles that any block of them can draw again.

Source: sources/003, §12.9: rate 0.1 after the attention weights and after the activations of the MLP.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

__all__ = ["TILE", "dropout", "fold_in", "kept_weights"]

TILE = 64
"""Side of the square tiles of attention weights that are drawn from one key each."""


def fold_in(key: Key[Array, "*batch"] | None, data: int | Int[Array, ""]) -> Key[Array, "*batch"] | None:
    """``jax.random.fold_in`` of every key of a batch; None stays None."""
    if key is None:
        return None
    fold = jax.random.fold_in
    for _ in range(key.ndim):
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(key, data)


def dropout(X: Float[Array, "d *columns"], rate: float, key: Key[Array, "*batch"] | None) -> Float[Array, "d *columns"]:
    """Set each entry of X to 0 with probability ``rate``, and divide the others by 1 − rate.

    Args:
        X: activations, ``[d, *batch, l]``.
        rate: probability to drop.
        key: one for each sequence of the batch; None keeps everything.
    """
    if key is None or rate == 0:
        return X

    def draw(key):
        return jax.random.bernoulli(key, 1 - rate, (X.shape[0], X.shape[-1]))

    for _ in range(key.ndim):
        draw = jax.vmap(draw, out_axes=1)
    return jnp.where(draw(key), X / (1 - rate), 0)


def kept_weights(
    key: Key[Array, ""],
    rate: float,
    first: tuple[int | Int[Array, ""], int | Int[Array, ""]],
    tiles: tuple[int, int],
) -> Bool[Array, "rows columns"]:
    """Which attention weights are kept, in a block of whole tiles.

    Tile (i, j) is drawn from a key of its own, so the weights that are dropped do not depend on how they are blocked.

    Args:
        key: of one head of one sequence.
        rate: probability to drop.
        first: the block's first tile, counted along t_z and along t_x.
        tiles: how many tiles the block has, along t_z and along t_x.

    Returns:
        boolean array of ``tiles[0] * TILE`` rows t_z and ``tiles[1] * TILE`` columns t_x.
    """

    def tile(i, j):
        return jax.random.bernoulli(jax.random.fold_in(key, i * 2**16 + j), 1 - rate, (TILE, TILE))

    i, j = first[0] + jnp.arange(tiles[0]), first[1] + jnp.arange(tiles[1])
    drawn = jax.vmap(jax.vmap(tile, (None, 0)), (0, None))(i, j)
    return drawn.transpose(0, 2, 1, 3).reshape(tiles[0] * TILE, tiles[1] * TILE)
