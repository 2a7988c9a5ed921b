"""Steer generation with directions, which are added to a value at every token, and saved in files."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors import SafetensorError, safe_open

from algorithms.inside import At, at
from training.disk import local_path
from training.runs.named_arrays import save_tensors

FORMAT = "formal-algorithms direction 1"


class SteeringError(ValueError):
    """The direction cannot be used; the message is one sentence."""


def save_direction(path: Path | str, name: str, direction: Any) -> None:
    """Write a direction, ``[rows]``, or ``[H, rows]`` for all heads, to a safetensors file, with the name of the value
    to add it to. Raises SteeringError if that selects more than a layer and a head, such as a token.

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
        raise SteeringError(f"{where}: expected one layer and at most one head, since a direction is for every token")
    metadata = {"format": FORMAT, "where": json.dumps({"name": where.name, **given})}
    save_tensors(Path(path), {"direction": np.ascontiguousarray(direction, np.float32)}, metadata)


def load_direction(path: Path | str) -> tuple[At, Array]:
    """Return where to add the direction in a file, and the direction. Raises SteeringError if it cannot be read."""
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
        got = "others that are not finite" if direction.ndim in (1, 2) else f"an array {list(direction.shape)}"
        raise SteeringError(f"{path}: expected finite numbers [rows] or [H, rows], got {got}")
    return place, jnp.asarray(direction)


def steered_by(words: Sequence[str]) -> dict[At, Callable[[Array], Array]]:
    """Return the interventions of directions, ``FILE`` or ``FILE:SCALE``, added in turn, or raise SteeringError."""
    sums: dict[At, list[tuple[str, Array]]] = {}
    for word in words:
        path, scale = _parsed(word)
        where, direction = load_direction(path)
        sums.setdefault(where, []).append((path, scale * direction))
    return {where: _adding(directions) for where, directions in sums.items()}


def _parsed(word: str) -> tuple[str, float]:
    path, colon, last = word.rpartition(":")
    if not colon or local_path(word).is_file():
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
                shape, got = list(X.shape[: max(1, direction.ndim)]), list(direction.shape)
                raise SteeringError(f"{path}: expected a direction {shape} for this model, got {got}")
            X = X + direction.astype(X.dtype).reshape(*direction.shape, *(1,) * (X.ndim - direction.ndim))
        return X

    return added
