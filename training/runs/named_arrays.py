"""Pytrees of arrays as dictionaries, with names such as `layers.attention.heads.W_q`: in memory and in files."""

import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jax.sharding import Sharding

AT_ONCE = 1 << 22
"""Bytes of an array that are read at once."""


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


def read_tensor(path: Path, name: str, sharding: Sharding, dtype: Any, checksum: int) -> jax.Array:
    """Return an array of a safetensors file, read where it is to lie: each device its part.

    The file is opened anew for each of them, so that what was read of the others need not stay in memory.

    Raises:
        ValueError: it is not what was saved.
    """
    with safetensors.safe_open(path, framework="numpy") as file:
        stored = file.get_slice(name)
        if _checksum_of_slices(stored) != checksum:
            raise ValueError(f"{name} is not what was saved")

        def of_device(index: Any) -> np.ndarray:
            part = stored[index]
            return part if dtype is None else part.astype(dtype)

        if len(sharding.device_set) == 1:  # not committed to it, so that a mesh may take it
            return jnp.asarray(of_device((slice(None),) * len(stored.get_shape())))
        return jax.make_array_from_callback(tuple(stored.get_shape()), sharding, of_device)


def _checksum_of_slices(stored: Any) -> int:
    """The checksum of an array of which some rows are read at once."""
    shape = tuple(stored.get_shape())
    first = stored[:1]
    checksum, rows = zlib.crc32(f"{first.dtype}{shape}".encode()), max(1, AT_ONCE // max(1, first.nbytes))
    for i in range(0, shape[0], rows):
        some = np.ascontiguousarray(stored[i : min(i + rows, shape[0])])
        checksum = zlib.crc32(some.reshape(-1).view(np.uint8).data, checksum)
    return checksum


def _checksum(array: np.ndarray) -> int:
    header = zlib.crc32(f"{array.dtype}{array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, header)


def save_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write contiguous arrays to a safetensors file.

    Raises:
        OSError: it cannot be written, as when the disk is full.
    """
    try:
        safetensors.numpy.save_file(dict(tensors), path, metadata)
    except safetensors.SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None
