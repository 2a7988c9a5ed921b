"""The axes of a recorded value, and how a part of it is read and replaced."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from algorithms.inside.names import At, Index
from algorithms.machinery.naming import Site

SCORES = ("S", "A")
"""The values that have a row for each context token."""


class Turn(NamedTuple):
    """An iteration of a loop around a value."""

    number: Any  # its index, from 0; it may be traced
    length: int  # the number of iterations of the loop


def rows_first(value: Array, site: Site, mapped: int) -> Array:
    """``[H, rows, *mapped, *batch, columns]`` of a value with ``mapped`` axes of `jax.vmap` in front."""
    return jnp.transpose(value, _order(value.ndim, site, mapped))


def mapped_first(value: Array, site: Site, mapped: int) -> Array:
    """The inverse of `rows_first`."""
    return jnp.transpose(value, np.argsort(_order(value.ndim, site, mapped)).tolist())


def _order(n: int, site: Site, mapped: int) -> list[int]:
    front, own = list(range(mapped)), list(range(mapped, n))
    heads = []
    if site.heads:  # the outermost of the axes mapped over for heads and sequences, or the value's own first axis
        heads = [front.pop(mapped - site.each)] if site.each else [own.pop(0)]
    return [*heads, *own[:1], *front, *own[1:]]


class Part(NamedTuple):
    """A part of a value in one iteration of the loops around it."""

    where: At  # the request, as the user wrote it
    site: Site  # the statement that names the value

    def check(self, shape: tuple[int, ...], loops: tuple[int, ...]) -> None:
        """Check that a value ``[H, rows, …, columns]``, in loops of these lengths, has this part.

        Raises ValueError if the value does not have this part.
        """
        if self.where.layer is not None and not (self.site.layers and loops):
            raise ValueError(f"{self.where}: expected no layer, since it is not computed in every layer")
        sizes = {word: shape[axis] for word, axis in self._axes(len(shape)).items()}
        if self.site.layers and loops:
            sizes["layer"] = loops[-1]
        for word in ("layer", "head", "token", "context"):
            part = getattr(self.where, word)
            if part is None:
                continue
            if word not in sizes:
                raise ValueError(f"{self.where}: expected no {word}, since it has no such axis")
            if isinstance(part, (int, np.ndarray)) and np.any((part < -sizes[word]) | (part >= sizes[word])):
                raise ValueError(f"{self.where}: expected a {word} from 0 to {sizes[word] - 1}, got {part}")

    def _axes(self, ndim: int) -> dict[str, int]:
        rows = 1 if self.site.heads else 0
        axes = {"head": 0} if self.site.heads else {}
        axes |= {"context": rows} if self.site.symbol in SCORES else {}
        return axes | ({"token": ndim - 1} if ndim > rows + 1 else {})

    def _chosen(self, ndim: int) -> list[tuple[int, Index]]:
        axes = self._axes(ndim)
        return [
            (axis, getattr(self.where, word)) for word, axis in axes.items() if getattr(self.where, word) is not None
        ]

    def of(self, value: Array) -> Array:
        """The part of a value ``[H, rows, …, columns]``; an axis indexed by a single integer is dropped."""
        chosen = self._chosen(value.ndim)
        for axis, index in chosen:
            selected = value[_at_axis(value, axis, index)]
            value = in_range_or_nan(selected, index, value.shape[axis], axis)
        return jnp.squeeze(value, tuple(axis for axis, index in chosen if _is_one(index)))

    def replaced(self, value: Array, part: Array) -> Array:
        """The value with this part replaced."""
        chosen = self._chosen(value.ndim)
        part = jnp.expand_dims(part, sorted(axis for axis, index in chosen if _is_one(index)))
        outer = [value]
        for axis, index in chosen[:-1]:
            outer.append(outer[-1][_at_axis(value, axis, index)])
        for whole, (axis, index) in zip(reversed(outer), reversed(chosen), strict=False):
            part = whole.at[_at_axis(value, axis, index)].set(part)
        return part

    def layers(self, length: int) -> Any:
        """The chosen layers: one number, which may be traced, or an array of several."""
        layer = self.where.layer
        return np.arange(length)[layer] if isinstance(layer, slice) else layer % length

    def edited_or_nan(self, value: Array, layers: int) -> Array:
        """An edited value, all of it NaN if an index was out of range."""
        indices = [(index, value.shape[axis]) for axis, index in self._chosen(value.ndim)]
        for index, size in [*indices, (self.where.layer, layers)]:
            if isinstance(index, Tracer):
                value = value * _one_or_nan(index, size).prod().astype(value.dtype)
        return value


def in_range_or_nan(value: Array, index: Index, size: int, axis: int = 0) -> Array:
    """The selected values; NaN, as their gradients, where the index was out of range.

    Indices that are not traced have been checked.
    """
    if not isinstance(index, Tracer):
        return value
    factor = _one_or_nan(index, size).astype(value.dtype)
    return value * factor.reshape([factor.size if i == axis else 1 for i in range(value.ndim)])


def _one_or_nan(index: Array, size: int) -> Array:
    index = index.astype(int)  # an unsigned integer has no number below 0 to compare with
    return jnp.where((index >= -size) & (index < size), 1.0, jnp.nan)


def _is_one(index: Index) -> bool:
    return not isinstance(index, slice) and jnp.ndim(index) == 0


def _at_axis(value: Array, axis: int, index: Index) -> tuple[Any, ...]:
    """An index of one axis that keeps the axis even if it is a single integer; it is taken modulo the axis's size."""
    if isinstance(index, Tracer):
        index = index % value.shape[axis]
    if isinstance(index, int):
        index = slice(index, index + 1 or None)
    elif _is_one(index):
        index = index[None]
    return (slice(None),) * axis + (index,)


def edited(part: Part, value: Array, new: Any, turns: tuple[Turn, ...]) -> Array:
    """A value ``[H, rows, …, columns]`` with a part replaced by a number, an array or a function of the part.

    An array has the shape of the part, or that with the axes of loops in front, as `record` returns it. Raises
    ValueError if the replacement has another shape.
    """
    old, layered = part.of(value), part.where.layer is not None
    outer = list(turns[:-1] if layered else turns)
    if layered:
        layers = part.layers(turns[-1].length)
        is_chosen = turns[-1].number == jnp.asarray(layers)
        if jnp.ndim(layers):
            outer.append(Turn(jnp.argmax(is_chosen), len(layers)))
    if isinstance(new, Added):
        replacement = old + _of_turn(part, new.value, old, outer)
    elif callable(new):
        replacement = jnp.asarray(new(old))
        if replacement.shape not in ((), old.shape):
            raise ValueError(
                f"{part.where}: expected a function that keeps the shape {list(old.shape)}, "
                f"got one that returns {list(replacement.shape)}"
            )
    else:
        replacement = _of_turn(part, jnp.asarray(new), old, outer)
    changed = part.replaced(value, jnp.broadcast_to(replacement.astype(value.dtype), old.shape))
    changed = jnp.where(is_chosen.any(), changed, value) if layered else changed
    return part.edited_or_nan(changed, turns[-1].length if layered else 0)


class Added(NamedTuple):
    """A change that adds an array, with the axes that `record` returns."""

    value: Array


def _of_turn(part: Part, new: Array, old: Array, turns: list[Turn]) -> Array:
    """The slice of an array for this iteration of the loops; a number is the same in all."""
    lengths = tuple(turn.length for turn in turns)
    for n in range(len(turns) + 1):
        if new.shape == (*lengths[len(turns) - n :], *old.shape):
            for turn in turns[len(turns) - n :]:
                new = jax.lax.dynamic_index_in_dim(new, jnp.asarray(turn.number), keepdims=False)
            return new
    if new.ndim == 0:
        return new
    shapes = dict.fromkeys(str([*lengths[n:], *old.shape]) for n in range(len(turns), -1, -1))
    raise ValueError(f"{part.where}: expected a number, or an array {' or '.join(shapes)}, got {list(new.shape)}")
