"""Directions that steer what a model writes: files of them, and the change that adds them to every token."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from algorithms.inside import At, at

FORMAT = "formal-algorithms direction 1"


class SteeringError(ValueError):
    """The direction cannot be used; the message is one sentence."""


def save_direction(path: Path | str, name: str, direction: Any) -> None:
    """Write a direction as a safetensors file, with the name of the value that it is to be added to.

    Args:
        path: of the file.
        name: of the value, such as ``at("X@8", layer=3)``.
        direction: its rows; of all heads, ``[H, rows]``.

    Raises:
        SteeringError: if it cannot be added to every token.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_direction(f"{folder}/a.safetensors", at("X@8", layer=3), jnp.ones(4))
        ...     load_direction(f"{folder}/a.safetensors")
        ('X@8[layer=3]', Array([1., 1., 1., 1.], dtype=float32))
    """
    where = name if isinstance(name, At) else at(name)
    parts = {part: getattr(where, part) for part in ("layer", "head", "token", "context", "within")}
    given = {part: value for part, value in parts.items() if value is not None}
    if not given.keys() <= {"layer", "head"} or not all(isinstance(value, int) for value in given.values()):
        raise SteeringError(f"{where}: expected one layer and perhaps one head, since a direction is for every token")
    described = json.dumps({"name": where.name, **given})
    save_file(
        {"direction": np.ascontiguousarray(direction, np.float32)}, str(path), {"format": FORMAT, "where": described}
    )


def load_direction(path: Path | str) -> tuple[At, Array]:
    """Read such a file: where to add it, and the direction. Raises SteeringError if it is another file."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            if metadata.get("format") != FORMAT or names != ["direction"]:
                raise SteeringError(f"{path}: expected a direction, as save_direction writes it, got other tensors")
            direction = file.get_tensor("direction")
        where = json.loads(metadata["where"])
        place = at(where.pop("name"), **where)
    except FileNotFoundError:
        raise SteeringError(f"{path}: there is no such file") from None
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise SteeringError(f"{path}: expected a direction, as save_direction writes it, got {error}") from None
    if direction.ndim not in (1, 2) or not np.isfinite(direction.astype(np.float64)).all():
        raise SteeringError(f"{path}: expected finite numbers [rows] or [H, rows], got {_wrong(direction)}")
    return place, jnp.asarray(direction)


def _wrong(direction: np.ndarray) -> str:
    return "some that are not finite" if direction.ndim in (1, 2) else f"an array {list(direction.shape)}"


def steered_by(words: Sequence[str]) -> dict[At, Callable[[Array], Array]]:
    """The changes that add directions: of each value, the sum of all that are to be added to it.

    Args:
        words: files, each perhaps with a colon and what its direction is multiplied by.

    Raises:
        SteeringError: if one of them cannot be read.
    """
    sums: dict[At, list[tuple[str, Array]]] = {}
    for word in words:
        path, scale = _parsed(word)
        where, direction = load_direction(path)
        sums.setdefault(where, []).append((path, scale * direction))
    return {where: _adding(directions) for where, directions in sums.items()}


def _parsed(word: str) -> tuple[str, float]:
    path, colon, last = word.rpartition(":")
    if not colon or Path(word).is_file():
        return word, 1.0
    try:
        scale = float(last)
    except ValueError:
        scale = math.nan
    if not math.isfinite(scale) or not path:
        raise SteeringError(f"{word}: expected FILE or FILE:SCALE with a finite number, got {last!r} for SCALE")
    return path, scale


def _adding(directions: Sequence[tuple[str, Array]]) -> Callable[[Array], Array]:
    def added(X: Array) -> Array:
        for path, direction in directions:
            if X.shape[: direction.ndim] != direction.shape:
                raise SteeringError(
                    f"{path}: expected a direction {list(X.shape[: max(1, direction.ndim)])} for this model, "
                    f"got {list(direction.shape)}"
                )
            X = X + direction.astype(X.dtype).reshape(*direction.shape, *(1,) * (X.ndim - direction.ndim))
        return X

    return added
