"""Checksums of arrays whose parts lie on several devices, or on several hosts.

A sum is that of an array's words, each times an odd number that its place decides, modulo 2³²: any flipped bit changes
it, and devices add it up in any order, each what it has.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def sums(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Return a checksum of every array, its shape and its dtype, by name; the same for arrays of NumPy and of JAX."""
    of_devices = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, jax.Array)}
    found = _sums(of_devices) | {
        name: _sum(np, _words(leaf)) for name, leaf in leaves.items() if name not in of_devices
    }
    return {name: zlib.crc32(f"{leaf.dtype}{leaf.shape}{int(found[name])}".encode()) for name, leaf in leaves.items()}


@jax.jit
def _sums(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: _sum(jnp, _words_on_device(leaf)) for name, leaf in leaves.items()}


def _sum(xp: Any, words: Any) -> Any:
    place = xp.ones((1,) * words.ndim, xp.uint32)
    for axis, n in enumerate(words.shape):
        along = (xp.arange(n, dtype=xp.uint32) + xp.uint32(axis + 1)) * xp.uint32(0x9E3779B1)
        along = (along ^ (along >> 15)) * xp.uint32(0x85EBCA76)  # even, so that the sum is odd
        place = place + along.reshape([n if i == axis else 1 for i in range(words.ndim)])
    return (words * place).sum(dtype=xp.uint32)


def _words(array: Any) -> np.ndarray:
    """The bits of an array, as 32-bit words; with a last axis for the words of a longer number, or for one word."""
    array = np.asarray(array)
    width = max(1, array.dtype.itemsize // 4)
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{min(4, array.dtype.itemsize)}").astype(np.uint32)
    return bits.reshape(*array.shape, width)


def _words_on_device(array: jax.Array) -> jax.Array:
    array = array.astype(jnp.uint8) if array.dtype == bool else array
    bits = jax.lax.bitcast_convert_type(array, f"uint{min(32, 8 * array.dtype.itemsize)}").astype(jnp.uint32)
    return bits.reshape(*array.shape, -1)
