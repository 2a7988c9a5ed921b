"""Encode arrays for the page: 8, 16 or 32 bits per number, all compressed together, as a string."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Packed(NamedTuple):
    """Arrays as a string."""

    text: str  # their concatenated bytes, deflated, in base64
    # each array's name, shape, bits, offset of its first byte, low and step: number n stands for ``low + n step``.
    # Signed arrays can represent 0 exactly, and the highest n is NaN
    table: list[dict[str, Any]]


def packed(arrays: Mapping[str, tuple[np.ndarray, int]]) -> Packed:
    """Pack arrays, each with its number of bits; integers are kept as they are.

    Example:
        >>> p = packed({"A": (np.array([[0.0, 0.25], [1.0, 0.5]]), 8)})
        >>> unpacked(p)["A"].round(2).tolist()
        [[0.0, 0.25], [1.0, 0.5]]
    """
    table, parts, offset = [], [], 0
    for name, (array, bits) in sorted(arrays.items(), key=lambda item: -item[1][1]):  # keeps larger numbers aligned
        low, step = _range(array, bits)
        numbers = np.round((np.asarray(array, np.float64) - low) / step)
        numbers = np.where(np.isfinite(numbers), numbers, 2**bits - 1)
        data = numbers.astype(f"<u{bits // 8}").tobytes()
        table.append({"name": name, "shape": array.shape, "bits": bits, "offset": offset, "low": low, "step": step})
        parts.append(data)
        offset += len(data)
    return Packed(base64.b64encode(zlib.compress(b"".join(parts), 9)).decode("ascii"), table)


def _range(array: np.ndarray, bits: int) -> tuple[float, float]:
    """Return low and step: 0 and 1 for integers, 0 and 1/(2^bits − 2) for weights and probabilities."""
    if np.issubdtype(array.dtype, np.integer):
        return 0.0, 1.0
    finite = array[np.isfinite(array)]
    largest = float(np.abs(finite).max(initial=0))
    if float(finite.min(initial=0)) >= 0 and largest <= 1:
        return 0.0, 1 / (2**bits - 2)
    step = max(largest, 1e-30) / (2 ** (bits - 1) - 1)
    return -step * (2 ** (bits - 1) - 1), step


def unpacked(p: Packed) -> dict[str, np.ndarray]:
    """Return the arrays, within half a step of their original values."""
    data = zlib.decompress(base64.b64decode(p.text))
    found = {}
    for entry in p.table:
        size = int(np.prod(entry["shape"]))
        numbers = np.frombuffer(data, f"<u{entry['bits'] // 8}", size, entry["offset"]).astype(np.float64)
        values = entry["low"] + numbers * entry["step"]
        is_number = entry["step"] != 1
        values = np.where(is_number & (numbers == 2 ** entry["bits"] - 1), np.nan, values)
        found[entry["name"]] = values.reshape(entry["shape"])
    return found
