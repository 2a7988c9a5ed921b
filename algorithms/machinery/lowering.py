"""What a program is lowered for: the platform, and the devices of the mesh that share it."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

HEADS = "model"
"""The mesh axis that divides the heads of an attention; every other one divides the sequences of a batch."""


def platform_of(X: Array) -> str:
    """The platform that is compiled for: that of the mesh X lies on, of the mesh in use, or the default device's."""
    for mesh in (jax.typeof(X).sharding.mesh, jax.sharding.get_abstract_mesh()):
        if getattr(mesh, "abstract_device", None) is not None:
            return mesh.abstract_device.platform
    device = getattr(jax.config, "jax_default_device", None)  # a device, or the name of a platform
    return getattr(device, "platform", device) or jax.default_backend()


def devices_sharing(X: Array) -> int:
    """How many devices of the mesh in use XLA itself divides a program between."""
    return math.prod(_divided(X).values())


def split_explicitly(X: Array) -> bool:
    """Whether a mesh of several devices has its axes in the types of arrays, where nothing may be moved unasked."""
    mesh = _mesh(X)
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return any(size > 1 and types[axis] == AxisType.Explicit for axis, size in _divided(X).items())


def split_heads_and_sequences(
    kernel: Callable[..., Array], tiles: tuple[Array, ...], mask: Any, has_batch: Any, seeds: Array | None
) -> Array:
    """``kernel(*tiles, mask, seeds)``, by each device of the mesh in use for its own heads and sequences.

    XLA cannot split a library's kernel, and splits loops over tiles by sending all of them to all devices.

    Args:
        kernel: returns one array like the tiles.
        tiles: ``[H, d, B, l]``.
        mask: a pytree, whose arrays belong to all heads.
        has_batch: for each of these arrays, whether its first axis is that of the sequences.
        seeds: ``[H, B, 2]``, or None.
    """
    divided = {axis: size for axis, size in _divided(tiles[0]).items() if size > 1}
    if not divided or split_explicitly(tiles[0]):
        return kernel(*tiles, mask, seeds)
    H, _, B, _ = tiles[0].shape
    heads = HEADS if HEADS in divided and H % divided[HEADS] == 0 else None
    sequences: tuple[str, ...] = ()
    for axis, size in divided.items():
        if axis != HEADS and B % size == 0:
            sequences, B = (*sequences, axis), B // size
    tile = P(heads, None, sequences)
    of_mask = jax.tree.map(lambda batched: P(sequences) if batched else P(), has_batch)
    of_seeds = None if seeds is None else P(heads, sequences)
    in_specs = (*(tile,) * len(tiles), of_mask, of_seeds)
    mesh = _mesh(tiles[0])
    each = jax.shard_map(kernel, mesh=mesh, in_specs=in_specs, out_specs=tile, axis_names=set(divided), check_vma=False)
    return each(*tiles, mask, seeds)


def _mesh(X: Array) -> Any:
    mesh = jax.typeof(X).sharding.mesh
    return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


def _divided(X: Array) -> dict[str, int]:
    """The sizes of the mesh axes that XLA divides a program along."""
    mesh = _mesh(X)
    return {axis: size for axis, size in mesh.shape.items() if axis not in mesh.manual_axes}
