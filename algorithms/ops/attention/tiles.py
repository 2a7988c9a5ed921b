"""Attention of many heads and sequences, one *tile* — one head of one sequence — at a time.

The hand-derived rules are written for one tile. On a CPU, large tiles are processed one after another, since XLA's CPU
backend leaves its fast matrix product when there are many at once; small ones, and all elsewhere, run side by side.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, UInt32

from algorithms.machinery.arrays import are_numbers
from algorithms.masks import Mask, sequence_axes

T = TypeVar("T")
Tiles = tuple[Float[Array, "_ _ #B _"], ...]
ByDistance = tuple[Array, ...]
"""U ``[H, d_r, B, l_x]`` and P ``[H, d_r, n]`` of ``scores_by_distance``, or nothing."""

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
        matrices: ``[H, rows, B, columns]``; where one has fewer heads than the first, each serves several, and where
            one has a single sequence, that serves all.
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
    for_seeds = None if seeds is None else 0
    H, H_kv, B = len(matrices[0]), min(map(len, matrices)), matrices[0].shape[2]
    of_sequences = tuple(1 if a.shape[2] == B else None for a in matrices)
    matrices = tuple(a[:, :, 0] if axis is None else a for a, axis in zip(matrices, of_sequences, strict=True))
    of_head = jax.vmap(of_tile, (of_sequences, sequence_axes(mask), for_seeds), 1)
    if H_kv == H:
        return jax.vmap(of_head, (0, None, for_seeds))(matrices, mask, seeds)
    by_group = tuple(a if len(a) == H_kv else _grouped(a, H_kv) for a in matrices)
    own = tuple(None if len(a) == H_kv else 0 for a in matrices)
    of_group = jax.vmap(of_head, (own, None, for_seeds))
    seeds = None if seeds is None else _grouped(seeds, H_kv)
    found = jax.vmap(of_group, (0, None, for_seeds))(by_group, mask, seeds)
    return jax.tree.map(lambda a: a.reshape(H, *a.shape[2:]), found)


def _grouped(array: Array, H_kv: int) -> Array:
    """The heads as H_kv groups: ``[H_kv, H/H_kv, …]``."""
    return array.reshape(H_kv, -1, *array.shape[1:])


def sum_over_groups(dK: Float[Array, "H *axes"], H_kv: int) -> Float[Array, "H_kv *axes"]:
    """The gradient by keys or values that heads share: ``∂F/∂K_g = Σ_{h in group g} ∂F/∂K_h``."""
    return dK if len(dK) == H_kv else _grouped(dK, H_kv).sum(axis=1)


def shared_by_sequences(by_distance: ByDistance) -> Tiles:
    """U and P as matrices of tiles; all sequences share P."""
    return (by_distance[0], by_distance[1][:, :, None]) if by_distance else ()


def sum_over_sequences(by_U_P: list[Array]) -> ByDistance:
    """The gradients by U and P: that by P is the sum over the sequences that share it."""
    return (by_U_P[0], by_U_P[1].sum(axis=2)) if by_U_P else ()


def _one_after_another(of_tile, matrices, mask, seeds):
    H, _, B, _ = matrices[0].shape

    def tile(array, h, b):
        h = h if len(array) == H else h // (H // len(array))
        b = b if array.shape[2] == B else 0
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


def for_groups_of_tiles(
    of_tile: Callable[..., Any],
    matrices: tuple[Float[Array, "_ #B _ _"], ...],
    mask: Mask,
    seeds: UInt32[Array, "H B 2"] | None,
    n: int,
) -> tuple[Float[Array, "H B _ _"], ...]:
    """``of_tile`` of every head and sequence, n tiles side by side, one group after another.

    Args:
        of_tile: as of `for_each_tile`.
        matrices: ``[H, B, rows, columns]``; heads and sequences may serve several as in `for_each_tile`.
        mask: as of `for_each_tile`.
        seeds: of the dropout of each tile, or None.
        n: tiles of a group.
    """
    H, B = matrices[0].shape[:2]
    n = min(n, H * B)
    axes = sequence_axes(mask)
    for_seeds = None if seeds is None else 0
    of_group = jax.vmap(of_tile, (0, axes, for_seeds))

    def tiles_of(array: Array, first: Any, n: int) -> Array:
        flat = array.reshape(-1, *array.shape[2:])
        H_of, B_of = array.shape[:2]
        if (H_of, B_of) == (H, B):
            return jax.lax.dynamic_slice_in_dim(flat, first, n)
        at = [(first + i) // (B * (H // H_of)) * B_of + (first + i) % B_of for i in range(n)]
        return jnp.concatenate([jax.lax.dynamic_slice_in_dim(flat, i, 1) for i in at])

    def group(first: Any, n: int) -> Any:
        b = (first + jnp.arange(n)) % B
        of_b = jax.tree.map(lambda a, axis: a if axis is None else a[b], mask, axes, is_leaf=lambda a: a is None)
        return of_group(
            tuple(tiles_of(a, first, n) for a in matrices), of_b, None if seeds is None else tiles_of(seeds, first, n)
        )

    def put(first: Any, n: int, out: Any) -> Any:
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(a, value, first, 0)
            for a, value in zip(out, group(first, n), strict=True)
        )

    whole, rest = divmod(H * B, n)
    if whole == 1 and not rest:
        out = group(0, n)
    else:
        shapes = jax.eval_shape(functools.partial(group, n=n), 0)
        out = tuple(jnp.zeros_like(matrices[0], dtype=s.dtype, shape=(H * B, *s.shape[1:])) for s in shapes)
        out = jax.lax.fori_loop(0, whole, lambda i, out: put(i * n, n, out), out)
        out = put(whole * n, rest, out) if rest else out
    return tuple(a.reshape(H, B, *a.shape[1:]) for a in out)


def in_turn(n: int, step: Callable[[Array, T], T], state: T) -> T:
    """``state`` after ``step(i, state)`` for i = 0, …, n − 1.

    JAX would compute what depends on i alone, as the masks of all blocks, before the loop, and keep it for derivatives.
    """

    def tied(i, state):
        return step(*jax.lax.optimization_barrier((i, state)))

    return jax.lax.fori_loop(0, n, tied, state)
