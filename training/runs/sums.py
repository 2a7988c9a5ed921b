"""Checksums of arrays that may be divided among devices.

A checksum is the sum of an array's words modulo 2³², each times an odd number that depends on its position: any flipped
bit changes it, and each device can sum its own part, in any order.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def sums(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Return a checksum of each array, including its shape and dtype, by name; equal for NumPy's and JAX's arrays."""
    on_devices = {name: leaf for name, leaf in leaves.items() if not _is_on_host(leaf)}
    found = _sums(on_devices) if on_devices else {}
    found |= {name: _host_sum(leaf) for name, leaf in leaves.items() if name not in on_devices}
    return {name: zlib.crc32(f"{leaf.dtype}{leaf.shape}{int(found[name])}".encode()) for name, leaf in leaves.items()}


def _is_on_host(leaf: Any) -> bool:
    """Whether NumPy can read the array in place, without compiling anything."""
    if not isinstance(leaf, jax.Array):
        return True
    return leaf.is_fully_addressable and all(device.platform == "cpu" for device in leaf.devices())


def _axis_terms(xp: Any, axis: int, n: int) -> Any:
    """The axis's terms of the words' multipliers, by position: even, so that 1 plus all axes' terms is odd."""
    place = (xp.arange(n, dtype=xp.uint32) + xp.uint32(axis + 1)) * xp.uint32(0x9E3779B1)
    return (place ^ (place >> 15)) * xp.uint32(0x85EBCA76)


@jax.jit
def _sums(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: _sum(leaf) for name, leaf in leaves.items()}


def _sum(array: jax.Array) -> jax.Array:
    """The sum of an array's 32-bit words, whose last axis has those of each number (one, unless it is longer)."""
    array = array.astype(jnp.uint8) if array.dtype == bool else array
    bits = jax.lax.bitcast_convert_type(array, f"uint{min(32, 8 * array.dtype.itemsize)}").astype(jnp.uint32)
    words = bits.reshape(*array.shape, -1)
    place = jnp.ones((1,) * words.ndim, jnp.uint32)
    for axis, n in enumerate(words.shape):
        place = place + _axis_terms(jnp, axis, n).reshape([n if i == axis else 1 for i in range(words.ndim)])
    return (words * place).sum(dtype=jnp.uint32)


def _host_sum(array: Any) -> int:
    """`_sum` axis by axis, without an array of multipliers: Σ w·(1 + Σ_axis a) = Σ w + Σ_axis Σ a·(Σ_others w)."""
    array, total = np.asarray(array), 0
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{min(4, array.dtype.itemsize)}")
    words = bits.astype(np.uint32, copy=False).reshape(*array.shape, max(1, array.dtype.itemsize // 4))
    for axis in reversed(range(words.ndim)):
        others = words.sum(axis=tuple(range(axis)), dtype=np.uint32)
        total += int((others * _axis_terms(np, axis, words.shape[axis])).sum(dtype=np.uint32))
        words = words.sum(axis=axis, dtype=np.uint32)
    return (total + int(words)) % 2**32
