"""Pytrees of arrays as dictionaries, with names such as `layers.attention.heads.W_q`, and their checksums."""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def flatten(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by the dotted names of their fields."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def unflatten(template: Any, leaves: Mapping[str, Any]) -> Any:
    """Return a pytree like the template, with these leaves.

    Raises:
        KeyError: a leaf is missing.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[_name(path)], template)


def checksums(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Return the CRC-32 of every array, its shape and its dtype, by name."""
    return {name: _checksum(np.asarray(leaf)) for name, leaf in leaves.items()}


def _checksum(array: np.ndarray) -> int:
    header = zlib.crc32(f"{array.dtype}{array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, header)
