"""Attention of many heads and sequences, one *tile* — one head of one sequence — at a time.

The hand-derived rules are written for one tile. On a CPU, large tiles are processed one after another, since XLA's CPU
backend leaves its fast matrix product when there are many at once; small ones, and all elsewhere, run side by side.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, UInt32

from algorithms.machinery.arrays import are_numbers
from algorithms.masks import Mask, sequence_axes

Tiles = tuple[Float[Array, "H _ B _"], ...]

SMALL = 128 * 128
"""Scores of the largest tile that is small."""

AT_ONCE = 2
"""Tiles that run side by side on a CPU's cores where they are large: a tile's own lines wait for each other."""


def for_each_tile(
    of_tile: Callable[..., Any], matrices: Tiles, mask: Mask, seeds: UInt32[Array, "H B 2"] | None
) -> Tiles:
    """``of_tile`` of every head and sequence.

    Args:
        of_tile: takes matrices ``[rows, columns]``, a mask and the seed of its dropout, or None; returns matrices.
        matrices: ``[H, rows, B, columns]``.
        mask: its arrays have B in front where the sequences differ in it.
        seeds: of the dropout of each tile, or None.
    """
    l_x, l_z = matrices[0].shape[-1], matrices[1].shape[-1]
    if not are_numbers(*matrices[0].shape, l_z) or l_x * l_z <= SMALL:
        return _side_by_side(of_tile, matrices, mask, seeds)
    return jax.lax.platform_dependent(
        matrices,
        mask,
        seeds,
        cpu=lambda *arguments: _one_after_another(of_tile, *arguments),
        default=lambda *arguments: _side_by_side(of_tile, *arguments),
    )


def _side_by_side(of_tile, matrices, mask, seeds):
    of_head = jax.vmap(of_tile, (1, sequence_axes(mask), None if seeds is None else 0), 1)
    return jax.vmap(of_head, (0, None, None if seeds is None else 0))(matrices, mask, seeds)


def _one_after_another(of_tile, matrices, mask, seeds):
    H, _, B, _ = matrices[0].shape

    def tile(array, h, b):
        return jax.lax.dynamic_slice(array, (h, 0, b, 0), (1, array.shape[1], 1, array.shape[3]))[0, :, 0]

    def one(i):
        h, b = i // B, i % B
        axes = sequence_axes(mask)
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
    out = tuple(jnp.zeros_like(matrices[0], dtype=s.dtype, shape=(H, s.shape[0], B, s.shape[1])) for s in shapes)
    n = min(AT_ONCE, H * B)
    whole = H * B // n
    out = jax.lax.fori_loop(0, whole, lambda i, out: put(i * n, out, n), out)
    return put(whole * n, out, H * B % n)
