"""Pytrees of arrays as dictionaries, with names such as `layers.attention.heads.W_q`: in memory and in files."""

import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy


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
