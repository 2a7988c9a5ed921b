"""Attention of many heads and sequences, one *tile* — one head of one sequence — at a time.

The hand-derived attention rules are written for one tile. On a CPU, large tiles are taken in turn, since XLA's CPU
backend leaves its fast matrix product when there are many at once; small ones, and all elsewhere, run side by side.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, UInt32

from algorithms.batching import mask_axes, of_mask
from algorithms.masks import Mask

__all__ = ["tilewise"]

Tiles = Float[Array, "H _ B _"]

SMALL = 128 * 128
"""Scores of the largest tile that is small."""

AT_ONCE = 2
"""Tiles of a turn on a CPU, which run side by side on its cores: a tile's own lines wait for each other."""


def tilewise(of_tile: Callable[..., Any]) -> Callable[..., Any]:
    """From a function of one tile to one of all tiles of several heads and sequences.

    Args:
        of_tile: takes matrices ``[rows, columns]``, a mask and the seed of its dropout (or None); returns a tuple of
            matrices.

    Returns:
        a function of matrices ``[H, rows, B, columns]`` in a tuple, a mask, whose arrays have B in front where the
        sequences differ in it, and seeds ``[H, B, 2]`` or None. ``jax.vmap`` of it makes B larger.
    """

    @jax.custom_batching.custom_vmap
    def of_all(matrices: tuple[Tiles, ...], mask: Mask, seeds: UInt32[Array, "H B 2"] | None) -> tuple[Tiles, ...]:
        small = matrices[0].shape[-1] * matrices[1].shape[-1] <= SMALL
        return jax.lax.platform_dependent(
            matrices,
            mask,
            seeds,
            cpu=lambda *arguments: (_side_by_side if small else _in_turn)(of_tile, *arguments),
            default=lambda *arguments: _side_by_side(of_tile, *arguments),
        )

    @of_all.def_vmap
    def enlarge(size, batched, matrices, mask, seeds):
        matrices_batched, mask_batched, seeds_batched = batched
        B = matrices[0].shape[2 + matrices_batched[0]]

        def merged(array, is_batched):
            wide = jnp.moveaxis(array, 0, 2) if is_batched else jnp.repeat(array[:, :, None], size, 2)
            return wide.reshape(*wide.shape[:2], size * B, *wide.shape[4:])

        wide = jax.tree.map(merged, matrices, matrices_batched)
        if seeds is not None:
            seeds = jnp.moveaxis(seeds, 0, 1) if seeds_batched else jnp.repeat(seeds[:, None], size, 1)
            seeds = seeds.reshape(seeds.shape[0], size * B, 2)
        out = of_all(wide, _merged_mask(mask, mask_batched, size, B), seeds)
        split = [jnp.moveaxis(a.reshape(*a.shape[:2], size, B, a.shape[3]), 2, 0) for a in out]
        return tuple(split), tuple(True for _ in split)

    return of_all


def _merged_mask(mask: Any, mask_batched: Any, size: int, B: int) -> Any:
    """The mask of size · B sequences; an array that all share stays as it is."""

    def merged(array, is_batched, rank):
        has_B = jnp.ndim(array) - is_batched > rank
        if not (is_batched or has_B):
            return array
        wide = array if is_batched else jnp.repeat(array[None], size, 0)
        wide = wide if has_B else jnp.repeat(wide[:, None], B, 1)
        return wide.reshape(size * B, *wide.shape[2:])

    leaves, treedef = jax.tree.flatten(mask)
    ranks = of_mask(mask).ranks or ()
    return treedef.unflatten(map(merged, leaves, jax.tree.leaves(mask_batched), ranks))


def _side_by_side(of_tile, matrices, mask, seeds):
    of_head = jax.vmap(of_tile, (1, mask_axes(mask), None if seeds is None else 0), 1)
    return jax.vmap(of_head, (0, None, None if seeds is None else 0))(matrices, mask, seeds)


def _in_turn(of_tile, matrices, mask, seeds):
    H, _, B, _ = matrices[0].shape

    def tile(array, h, b):
        return jax.lax.dynamic_slice(array, (h, 0, b, 0), (1, array.shape[1], 1, array.shape[3]))[0, :, 0]

    def one(i):
        h, b = i // B, i % B
        axes = mask_axes(mask)
        mask_b = jax.tree.map(lambda a, axis: a if axis is None else a[b], mask, axes, is_leaf=lambda a: a is None)
        return of_tile(tuple(tile(a, h, b) for a in matrices), mask_b, None if seeds is None else seeds[h, b])

    def put(first, out, n):
        tiles = [(first + i, one(first + i)) for i in range(n)]
        for i, values in tiles:
            at = (i // B, 0, i % B, 0)
            out = tuple(
                jax.lax.dynamic_update_slice(a, value[None, :, None], at) for a, value in zip(out, values, strict=True)
            )
        return out

    shapes = jax.eval_shape(one, 0)
    out = tuple(jnp.zeros((H, s.shape[0], B, s.shape[1]), s.dtype) for s in shapes)
    n = min(AT_ONCE, H * B)
    whole = H * B // n
    out = jax.lax.fori_loop(0, whole, lambda i, out: put(i * n, out, n), out)
    return put(whole * n, out, H * B % n)
