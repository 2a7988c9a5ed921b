"""Chunks of long sequences, and packing of short sequences into rows.

The paper splits a text into chunks of at most ℓ_max tokens. For next-token prediction a chunk begins with the last
token of the previous one, so that every token but bos is predicted exactly once; for masked tokens chunks are disjoint.
"""

import numpy as np
from jaxtyping import Int


class Chunks:
    """The chunks of consecutive sequences, of at most l_max tokens, `overlap` of them shared; found by index."""

    def __init__(self, offsets: Int[np.ndarray, " sequences+1"], l_max: int, overlap: int) -> None:
        self.l_max, self.overlap, self._offsets = l_max, overlap, offsets
        lengths = np.diff(offsets)
        counts = np.maximum(1, -(-(lengths - overlap) // (l_max - overlap)))
        self._ends = np.cumsum(np.where(lengths > 0, counts, 0))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate(self, indices: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Return the starts and lengths of the chunks with these indices."""
        sequence = np.searchsorted(self._ends, indices, side="right")
        first = np.where(sequence > 0, self._ends[sequence - 1], 0)
        starts = self._offsets[sequence] + (indices - first) * (self.l_max - self.overlap)
        return starts, np.minimum(self.l_max, self._offsets[sequence + 1] - starts)


Group = tuple[tuple[int, ...], int]  # the lengths of the items in a row, and the number of such rows


def _fill(counts: np.ndarray, capacity: int) -> list[Group]:
    """Fill rows by best fit decreasing, on a histogram: `counts[n]` items of length n."""
    by_room: list[list[Group]] = [[] for _ in range(capacity + 1)]
    for length in range(capacity, 0, -1):
        left = int(counts[length])
        for room in range(length, capacity):  # rows with this much room, the tightest first
            groups, by_room[room] = by_room[room], []
            for row, number in groups:
                taken, left = _put(length, left, row, room, number, by_room)
                if number > taken:
                    by_room[room].append((row, number - taken))
        _put(length, left, (), capacity, left, by_room)
    return [group for groups in by_room for group in groups]


def _put(
    length: int, left: int, row: tuple[int, ...], room: int, number: int, by_room: list[list[Group]]
) -> tuple[int, int]:
    """Put as many of `left` items into `number` rows as fit; return the rows used and the items left."""
    each = room // length
    full = min(number, left // each)
    if full:
        by_room[room - each * length].append(((*row, *[length] * each), full))
        left -= full * each
    if left and full < number:  # too few to fill a row
        by_room[room - left * length].append(((*row, *[length] * left), 1))
        return full + 1, 0
    return full, left


def pack(lengths: Int[np.ndarray, " n"], capacity: int) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " rows+1"]]:
    """Pack items into rows by best fit decreasing: return the items' indices row by row, and where each row starts.

    Example:
        >>> order, row_starts = pack(np.array([3, 5, 2, 4]), 7)
        >>> [order[a:b].tolist() for a, b in zip(row_starts, row_starts[1:])]
        [[3, 0], [1, 2]]
    """
    by_length = np.argsort(lengths, kind="stable")
    counts = np.bincount(lengths, minlength=capacity + 1)
    next_item = np.concatenate([[0], np.cumsum(counts)[:-1]])
    order, sizes = [], []
    for row, number in _fill(counts, capacity):
        items = np.empty((number, len(row)), np.int64)
        for column, length in enumerate(row):
            items[:, column] = by_length[next_item[length] : next_item[length] + number]
            next_item[length] += number
        order.append(items.ravel())
        sizes.append(np.full(number, len(row)))
    row_starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]) if sizes else np.zeros(1, np.int64)
    return (np.concatenate(order) if order else np.zeros(0, np.int64)), row_starts
