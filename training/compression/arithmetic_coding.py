"""An arithmetic coder: symbols to bits and back, at the cost of −log2 of the probability that each symbol was given.

Everything is an integer (Witten, Neal and Cleary 1987): the interval has 32 bits, and the probabilities of a symbol's
alternatives are counts with the sum 2^24, so that coder and decoder narrow the same interval to the last bit.
"""

import numpy as np

__all__ = ["Decoder", "Encoder", "counts"]

BITS = 32
FULL, HALF, QUARTER = 1 << BITS, 1 << (BITS - 1), 1 << (BITS - 2)
COUNT_BITS = 24
TOTAL = 1 << COUNT_BITS


def counts(p: np.ndarray) -> np.ndarray:
    """Return probabilities as integers: each at least 1, cumulative, from 0 to 2^24.

    Args:
        p: probabilities of the symbols, of which at most 2^23 are possible.

    Returns:
        the cumulative counts; symbol v has those from entry v to entry v + 1.

    Raises:
        ValueError: if something is negative or no number.
    """
    p = np.asarray(p, np.float64)
    if not np.all(np.isfinite(p)) or np.any(p < 0) or not p.sum() > 0:
        raise ValueError("the model's probabilities are no numbers: it cannot be used for compression")
    cumulative = np.cumsum(p)
    cumulative = np.floor(cumulative / cumulative[-1] * (TOTAL - len(p))).astype(np.int64)
    return np.concatenate([[0], cumulative + np.arange(1, len(p) + 1)])


class Encoder:
    """Takes symbols one by one; `finish` returns the bits."""

    def __init__(self) -> None:
        self._low, self._high, self._pending = 0, FULL - 1, 0
        self._bits: list[int] = []

    def encode(self, cumulative: np.ndarray, symbol: int) -> None:
        """Append a symbol.

        Args:
            cumulative: of all symbols, from `counts`.
            symbol: which one.
        """
        self._low, self._high = _narrowed(self._low, self._high, cumulative, symbol)
        while True:
            if self._high < HALF:
                self._emit(0)
            elif self._low >= HALF:
                self._emit(1)
                self._low, self._high = self._low - HALF, self._high - HALF
            elif self._low >= QUARTER and self._high < 3 * QUARTER:
                self._pending += 1
                self._low, self._high = self._low - QUARTER, self._high - QUARTER
            else:
                return
            self._low, self._high = 2 * self._low, 2 * self._high + 1

    def _emit(self, bit: int) -> None:
        self._bits += [bit, *[1 - bit] * self._pending]
        self._pending = 0

    def finish(self) -> bytes:
        """Return the bits of all symbols, the last byte filled with 0."""
        self._pending += 1
        self._emit(int(self._low >= QUARTER))
        return np.packbits(np.array(self._bits, np.uint8)).tobytes()


class Decoder:
    """Gives the symbols back, one by one; behind the end of the bits stand zeros."""

    def __init__(self, code: bytes) -> None:
        self._low, self._high = 0, FULL - 1
        self._bits = np.unpackbits(np.frombuffer(code, np.uint8)).tolist()
        self._next = BITS
        self._value = int("".join(map(str, (self._bits + [0] * BITS)[:BITS])), 2)

    def decode(self, cumulative: np.ndarray) -> int:
        """Return the next symbol.

        Args:
            cumulative: as it was encoded with.
        """
        width = self._high - self._low + 1
        target = ((self._value - self._low + 1) * TOTAL - 1) // width
        symbol = int(np.searchsorted(cumulative, target, side="right")) - 1
        self._low, self._high = _narrowed(self._low, self._high, cumulative, symbol)
        while True:
            if self._high < HALF:
                shift = 0
            elif self._low >= HALF:
                shift = HALF
            elif self._low >= QUARTER and self._high < 3 * QUARTER:
                shift = QUARTER
            else:
                return symbol
            self._low, self._high = 2 * (self._low - shift), 2 * (self._high - shift) + 1
            self._value = 2 * (self._value - shift) + self._bit()

    def _bit(self) -> int:
        self._next += 1
        return self._bits[self._next - 1] if self._next <= len(self._bits) else 0


def _narrowed(low: int, high: int, cumulative: np.ndarray, symbol: int) -> tuple[int, int]:
    width = high - low + 1
    first, last = int(cumulative[symbol]), int(cumulative[symbol + 1])
    return low + width * first // TOTAL, low + width * last // TOTAL - 1
