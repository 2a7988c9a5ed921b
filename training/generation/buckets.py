"""Rows of tokens padded to few sizes, so that few programs are compiled."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Int

T = TypeVar("T")
SMALLEST_BUCKET, SMALLEST_CAPACITY = 16, 64


def bucket(n: int) -> int:
    """Return the least of 16, 24, 32, 48, 64, 96, … that is at least n."""
    size = SMALLEST_BUCKET
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size


def bucketed(x: np.ndarray, l_max: int) -> np.ndarray:
    """Return tokens ``[B, l]`` padded on the right to the bucket of l, or to l_max if that is less."""
    return np.pad(x, ((0, 0), (0, min(bucket(x.shape[1]), l_max) - x.shape[1])))


def capacity(n: int) -> int:
    """Return the first number of slots for n tokens, a power of two; it doubles when full."""
    return 1 << (max(n, SMALLEST_CAPACITY) - 1).bit_length()


def padded_rows(rows: Sequence[Sequence[int] | np.ndarray]) -> tuple[Int[np.ndarray, "B l"], Int[np.ndarray, "B"]]:
    """Return rows of tokens, padded on the right with 0, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    x = np.zeros((len(rows), lengths.max()), np.int64)
    for of_x, row in zip(x, rows, strict=True):
        of_x[: len(row)] = row
    return x, lengths


def to_power_of_two(rows: list[T]) -> list[T]:
    """Return rows, with the first one repeated at the end up to a power of two."""
    return rows + rows[:1] * ((1 << (len(rows) - 1).bit_length()) - len(rows))
