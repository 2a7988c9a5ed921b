"""Check that the tables of sinusoids in a checkpoint are those that we compute."""

import fnmatch
from collections.abc import Sequence

import numpy as np

from algorithms.alg01_embedding import sinusoid
from training.interchange.containers import Tensors
from training.interchange.description import Model
from training.interchange.errors import InterchangeError

TOLERANCE = 0.01
"""Some tables are stored in bfloat16, and float32 angles are inexact for large positions."""


def check(tensors: Tensors, model: Model, ignored: Sequence[str]) -> None:
    """Compare stored tables with the sinusoids of the variant, except for rows of zeros, which are for padding. Raises
    InterchangeError if a table differs, for example because its positions were learned.
    """
    form = model.config.variant.embedding.positions
    if form in (None, "learned"):
        return
    for name in tensors.names:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored):
            stored = tensors.read(name).astype(np.float64)
            d_e = model.config.d_e
            if stored.size % d_e:
                raise InterchangeError(
                    f"{tensors.path}: {name} has {stored.size} numbers, expected a multiple of d_e = {d_e}"
                )
            stored = stored.reshape(-1, d_e)
            expected = np.asarray(sinusoid(np.arange(len(stored)), d_e, base=10000, form=form)).T
            same = np.abs(stored - expected).max(axis=1) <= TOLERANCE  # False for NaN
            different = ~same & stored.any(axis=1)
            if different.any():
                raise InterchangeError(
                    f"{tensors.path}: {name} differs from the {form} positions of the model from position "
                    f"{different.argmax()} on; this kind of model cannot have others"
                )
