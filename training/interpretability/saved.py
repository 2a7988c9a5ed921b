"""Save and load recorded values."""

import pathlib
from collections.abc import Mapping

import numpy as np
from jax import Array
from safetensors import SafetensorError
from safetensors.flax import load_file

from algorithms.inside import Recorded
from training.runs.named_arrays import save_tensors


def save_recorded(path: pathlib.Path | str, seen: Mapping[str, Array]) -> None:
    """Write recorded values to a safetensors file, each array under its name."""
    arrays = {str(name): np.ascontiguousarray(value) for name, value in seen.items()}
    save_tensors(pathlib.Path(path), arrays)


def load_recorded(path: pathlib.Path | str) -> Recorded:
    """Read such a file: ``load_recorded(path)[at("X@8", layer=3)]``. Raises ValueError for any other file."""
    try:
        return Recorded(load_file(str(path)))
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a safetensors file of recorded values, got {error}") from None
