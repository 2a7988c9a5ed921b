"""Pytrees of arrays as dictionaries with names such as `layers.attention.heads.W_q`, in memory and in files."""

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy
from jax.sharding import Sharding

from training.disk import give_usual_mode

CHUNK = 1 << 22  # bytes of an array to read at once
ALIGNMENT = 64  # bytes; JAX can use the memory of a NumPy array that starts at a multiple


def flatten(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by the dotted names of their fields."""
    return {name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def name_of(path: Any) -> str:
    """Return the dotted name of a path in a pytree."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def unflatten(template: Any, leaves: Mapping[str, Any]) -> Any:
    """Return a pytree like the template, with these leaves, or raise KeyError if one is missing."""
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[name_of(path)], template)


def checksums(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Return the CRC-32 of each array, including its shape and dtype, by name."""
    arrays = {name: np.asarray(leaf) for name, leaf in leaves.items()}
    return {name: _crc(array, _crc_of_header(array.dtype, array.shape)) for name, array in arrays.items()}


def read_tensor(path: Path, name: str, sharding: Sharding, dtype: Any, checksum: int) -> jax.Array:
    """Return an array of a safetensors file, each device reading its part, as ``dtype``, or raise ValueError."""
    with safetensors.safe_open(path, framework="numpy") as file:
        shape, stored = tuple(file.get_slice(name).get_shape()), file.get_slice(name)[:1].dtype
    kept = stored if dtype is None else np.dtype(dtype)
    is_whole = len(sharding.device_set) == 1
    whole = aligned(shape if is_whole else (0,), kept)
    found = _crc_of_header(stored, shape)
    for rows in _chunks(range(shape[0]), shape, stored):
        some = _rows(path, name, rows)
        found = _crc(some, found)
        if is_whole:
            whole[rows] = some
    if found != checksum:
        raise ValueError(f"wrong checksum of {name}")
    if is_whole:  # not committed to its device, so that it can be used on a mesh
        return jax.device_put(whole, may_alias=True)

    def of_device(index: Any) -> np.ndarray:
        ranges = [range(n)[i] for n, i in zip(shape, index, strict=True)]
        part = aligned(tuple(map(len, ranges)), kept)
        for rows in _chunks(ranges[0], shape, stored):
            first = ranges[0].start
            part[rows.start - first : rows.stop - first] = _rows(path, name, (rows, *index[1:]))
        return part

    return jax.make_array_from_callback(shape, sharding, of_device)


def _chunks(rows: range, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[slice]:
    """Split rows of an array into chunks of at most CHUNK bytes."""
    step = max(1, CHUNK // max(1, math.prod(shape[1:]) * dtype.itemsize))
    return (slice(i, min(i + step, rows.stop)) for i in range(rows.start, rows.stop, step))


def _rows(path: Path, name: str, index: Any) -> np.ndarray:
    """Read rows of an array; the file is mapped anew, so that earlier rows do not stay in memory."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.get_slice(name)[index]


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an empty array aligned so that JAX uses its memory without a copy."""
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + n_bytes].view(dtype).reshape(shape)


def _crc_of_header(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return zlib.crc32(f"{dtype}{shape}".encode())


def _crc(array: np.ndarray, before: int) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, before)


def save_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Write contiguous arrays to a safetensors file, or raise OSError, such as for a full disk."""
    try:
        safetensors.numpy.save_file(dict(tensors), path, metadata)
    except safetensors.SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None
    _sort_metadata(path)
    give_usual_mode(path)


def _sort_metadata(path: Path) -> None:
    """Sort the names in a file's metadata, which safetensors writes in any order: equal files have equal bytes."""
    with path.open("r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        if "__metadata__" in header:
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
            file.seek(8)
            file.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size))
