"""Pytrees of arrays as dictionaries, with names such as `layers.attention.heads.W_q`: in memory and in files."""

import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy
from jax.sharding import Sharding

AT_ONCE = 1 << 22
"""Bytes of an array that are read at once."""

ALIGNMENT = 64
"""Bytes; where an array of NumPy's begins at a multiple, JAX can use its memory."""


def flatten(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by the dotted names of their fields."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def unflatten(template: Any, leaves: Mapping[str, Any]) -> Any:
    """Return a pytree like the template, with these leaves, or raise KeyError if a leaf is missing."""
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[_name(path)], template)


def checksums(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Return the CRC-32 of every array, its shape and its dtype, by name."""
    return {name: _checksum(np.asarray(leaf)) for name, leaf in leaves.items()}


def read_tensor(path: Path, name: str, sharding: Sharding, dtype: Any, checksum: int) -> jax.Array:
    """Return an array of a safetensors file, read where it is to lie: each device its part.

    Its numbers become ``dtype``, or stay what they are if it is None.

    Raises:
        ValueError: it is not what was saved.
    """
    with safetensors.safe_open(path, framework="numpy") as file:
        shape, stored = tuple(file.get_slice(name).get_shape()), file.get_slice(name)[:1].dtype
    kept = stored if dtype is None else np.dtype(dtype)
    is_whole = len(sharding.device_set) == 1
    whole = _aligned(shape if is_whole else (0,), kept)
    found = zlib.crc32(f"{stored}{shape}".encode())
    for rows in _some(range(shape[0]), shape, stored):
        some = np.ascontiguousarray(_rows(path, name, rows))
        found = zlib.crc32(some.reshape(-1).view(np.uint8).data, found)
        if is_whole:
            whole[rows] = some
    if found != checksum:
        raise ValueError(f"{name} is not what was saved")
    if is_whole:  # not committed to its device, so that a mesh may take it
        return jax.device_put(whole, may_alias=True)

    def of_device(index: Any) -> np.ndarray:
        ranges = [range(n)[i] for n, i in zip(shape, index, strict=True)]
        part = _aligned(tuple(map(len, ranges)), kept)
        for rows in _some(ranges[0], shape, stored):
            first = ranges[0].start
            part[rows.start - first : rows.stop - first] = _rows(path, name, (rows, *index[1:]))
        return part

    return jax.make_array_from_callback(shape, sharding, of_device)


def _some(rows: range, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[slice]:
    """Rows of an array that are read at once, after each other."""
    step = max(1, AT_ONCE // max(1, math.prod(shape[1:]) * dtype.itemsize))
    return (slice(i, min(i + step, rows.stop)) for i in range(rows.start, rows.stop, step))


def _rows(path: Path, name: str, index: Any) -> np.ndarray:
    """Some of an array; the file is mapped anew for it, so that what was read does not stay in memory."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.get_slice(name)[index]


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that begins where JAX takes its memory over, and does not copy it."""
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + n_bytes].view(dtype).reshape(shape)


def _checksum(array: np.ndarray) -> int:
    header = zlib.crc32(f"{array.dtype}{array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, header)


def save_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write contiguous arrays to a safetensors file. Raises OSError if it cannot, as when the disk is full."""
    try:
        safetensors.numpy.save_file(dict(tensors), path, metadata)
    except safetensors.SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None
