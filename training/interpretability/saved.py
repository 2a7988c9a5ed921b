"""Files of what was recorded."""

import pathlib
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors import SafetensorError
from safetensors.flax import load_file, save_file

from algorithms.inside import Recorded


def save_recorded(path: pathlib.Path | str, seen: Mapping[str, Array]) -> None:
    """Write what `record` recorded as a safetensors file, each array under its name."""
    save_file({str(name): _at_hand(value) for name, value in seen.items()}, str(path))


def load_recorded(path: pathlib.Path | str) -> Recorded:
    """Read such a file: ``load_recorded(path)[at("X@8", layer=3)]``. Raises ValueError if it is not one."""
    try:
        return Recorded(load_file(str(path)))
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a safetensors file of recorded values, got {error}") from None


def _at_hand(value: Array) -> Array:
    return jnp.asarray(np.ascontiguousarray(value))
