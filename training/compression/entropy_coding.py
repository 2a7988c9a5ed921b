"""Symbols to bits and back, at the cost of −log2 of the probability that each was given: constriction's range coder.

Its probabilities are integers with the sum 2^24, none of them 0, so that coder and decoder narrow the same interval to
the last bit.
"""

import importlib
from typing import Any

import numpy as np
from jaxtyping import Float, Int

STREAM: Any = importlib.import_module("constriction").stream  # it says nothing of its types
MODEL = STREAM.model.Categorical(perfect=False)
WORD = np.dtype("<u4")


class Encoder:
    """Takes symbols; `finish` returns the bits."""

    def __init__(self) -> None:
        self._coder = STREAM.queue.RangeEncoder()

    def encode(self, P: Float[np.ndarray, "n N"], symbols: Int[np.ndarray, "n"]) -> None:
        """Append symbols, by the probabilities of what each could be. Raises ValueError if something is negative or no
        number.
        """
        self._coder.encode(symbols.astype(np.int32), MODEL, _checked(P))

    def finish(self) -> bytes:
        """Return the bits of all symbols, in words of four bytes."""
        return self._coder.get_compressed().astype(WORD).tobytes()


class Decoder:
    """Gives the symbols back, in their order."""

    def __init__(self, code: bytes) -> None:
        self._coder = STREAM.queue.RangeDecoder(np.frombuffer(code, WORD).astype(np.uint32))

    def decode(self, P: Float[np.ndarray, "n N"]) -> Int[np.ndarray, "n"]:
        """Return the next symbols, by the probabilities that they were encoded with. Raises ValueError if something is
        negative or no number, and AssertionError if the code cannot be that of any symbols.
        """
        return self._coder.decode(MODEL, _checked(P))


def _checked(P: np.ndarray) -> np.ndarray:
    P = np.ascontiguousarray(P, np.float64)
    if not np.all(np.isfinite(P)) or np.any(P < 0) or not np.all(P.sum(axis=1) > 0):
        raise ValueError("the model's probabilities are not numbers: it cannot be used for compression")
    return P
