"""Entropy coding with constriction's range coder: a symbol of probability p takes −log2 p bits.

The coder rounds probabilities to nonzero integers with the sum 2^24, so that encoder and decoder narrow the same
interval exactly.
"""

import importlib
from typing import Any

import numpy as np
from jaxtyping import Float, Int

STREAM: Any = importlib.import_module("constriction").stream  # has no type annotations
MODEL = STREAM.model.Categorical(perfect=False)
WORD = np.dtype("<u4")


class Encoder:
    """Encodes symbols; `finish` returns the bits."""

    def __init__(self) -> None:
        self._coder = STREAM.queue.RangeEncoder()

    def encode(self, P: Float[np.ndarray, "n N"], symbols: Int[np.ndarray, "n"]) -> None:
        """Append symbols, given the distribution of each. Raises ValueError unless these are numbers with a sum."""
        self._coder.encode(symbols.astype(np.int32), MODEL, _checked(P))

    def finish(self) -> bytes:
        """Return the bits of all symbols, as four-byte words."""
        return self._coder.get_compressed().astype(WORD).tobytes()


class Decoder:
    """Decodes symbols, in the order of encoding."""

    def __init__(self, code: bytes) -> None:
        self._coder = STREAM.queue.RangeDecoder(np.frombuffer(code, WORD).astype(np.uint32))

    def decode(self, P: Float[np.ndarray, "n N"]) -> Int[np.ndarray, "n"]:
        """Return the next symbols, given the distributions that they were encoded with. Raises AssertionError, too, if
        the code is invalid.
        """
        return self._coder.decode(MODEL, _checked(P))


def _checked(P: np.ndarray) -> np.ndarray:
    P = np.ascontiguousarray(P, np.float64)
    if not np.all(np.isfinite(P)) or np.any(P < 0) or not np.all(P.sum(axis=1) > 0):
        raise ValueError("the model's probabilities are not numbers: the model cannot be used for compression")
    return P
