"""The handwritten digits of scikit-learn: 1,797 images of 8 × 8 pixels in 17 shades, 0 to 16."""

from typing import Any, NamedTuple

import numpy as np

from training.data.records import DataError
from training.extras import install

SHADES = 17
SIDE = 8
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HELD_OUT = 5  # every fifth image is held out


class Digits(NamedTuple):
    """Images of digits."""

    shades: np.ndarray  # integers from 0 to 16, [n, 8, 8]
    labels: np.ndarray  # the digits, [n]

    @property
    def pixels(self) -> np.ndarray:
        """The images as Gato reads them: values from −1 to 1, [n, 8, 8, 1]."""
        return (self.shades / (SHADES - 1) * 2 - 1)[..., None].astype(np.float32)


def load(part: str) -> Digits:
    """Return the digits for training ("train") or the held-out ones. Raises DataError if scikit-learn is missing."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise DataError(f"the digits are scikit-learn's, which is not installed: {install('sklearn')}") from None
    data: Any = load_digits()
    held_out = np.arange(len(data.target)) % HELD_OUT == 0
    chosen = ~held_out if part == "train" else held_out
    return Digits(data.images[chosen].astype(np.int32), data.target[chosen].astype(np.int32))
