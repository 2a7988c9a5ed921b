"""The overlap of held-out text with the training text: the share of its windows that occur there verbatim.

A window is `WIDTH` characters. Its hash is a polynomial in an odd base modulo 2⁶⁴, so that the hashes of all windows of
a text are differences of one cumulative sum.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import UInt64

WIDTH = 60  # characters
MOST = 1 << 17  # windows that are looked for
BLOCK = 1 << 16  # characters that are hashed at once
BITS = 22  # of a hash, which index a table that excludes most windows
SHIFT = np.uint64(64 - BITS)
BASE = 0x9E3779B97F4A7C15


def _powers(base: int) -> UInt64[np.ndarray, " n"]:
    return np.cumprod(np.full(BLOCK + WIDTH, base, np.uint64))


POWERS, INVERSE_POWERS = _powers(BASE), _powers(pow(BASE, -1, 1 << 64))


def _hashes(text: str) -> Iterator[UInt64[np.ndarray, " n"]]:
    """Yield the hashes of all windows of a text, a block at a time."""
    for first in range(0, len(text) - WIDTH + 1, BLOCK):
        block = text[first : first + BLOCK + WIDTH - 1].encode("utf-32-le", "surrogatepass")
        characters = np.frombuffer(block, np.uint32)
        sums = np.zeros(len(characters) + 1, np.uint64)
        np.cumsum(characters * INVERSE_POWERS[: len(characters)], out=sums[1:])
        yield (sums[WIDTH:] - sums[:-WIDTH]) * POWERS[: len(sums) - WIDTH]


class Overlap:
    """Looks for the windows of held-out texts, or `MOST` of them, in training texts."""

    def __init__(self, held_out: Iterable[str]) -> None:
        apart = [hashes[::WIDTH] for text in held_out for hashes in _hashes(text)]
        windows = np.concatenate([np.zeros(0, np.uint64), *apart])
        self._windows, self._counts = np.unique(windows[:: -(-len(windows) // MOST) or 1], return_counts=True)
        self._found = np.zeros(len(self._windows), bool)
        self._table = np.zeros(1 << BITS, bool)
        self._table[self._windows >> SHIFT] = True

    def look_in(self, text: str) -> None:
        """Look for the windows in a training text."""
        for hashes in _hashes(text) if len(self._windows) else ():
            likely = hashes[self._table[hashes >> SHIFT]]
            places = np.minimum(np.searchsorted(self._windows, likely), len(self._windows) - 1)
            self._found[places[self._windows[places] == likely]] = True

    @property
    def share(self) -> float | None:
        """The share of the windows that were found; None if no held-out text is as long as a window."""
        return float(self._counts[self._found].sum() / self._counts.sum()) if len(self._counts) else None
