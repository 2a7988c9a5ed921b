"""Checks values against the kinds and shapes of their annotations: a named axis has one size wherever it appears."""

import math
import typing
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from algorithms.machinery.annotations import Allowed, Range, alternatives, fields_of, is_array, words_for

NUMBERS, BOOLEANS, KEY = "floating-point numbers", "booleans", "a typed key"

KINDS: dict[str, tuple[str, Any]] = {
    "Float": (NUMBERS, jnp.floating),
    "Integer": ("integers", jnp.integer),
    "Bool": (BOOLEANS, jnp.bool_),
    "Key": (KEY, jax.dtypes.prng_key),
}
"""jaxtyping's name of a kind of array → its description in error messages, and its dtypes."""

HINTS = {
    NUMBERS: "; tokens are columns, weights are [d_out, d_in], and a batch is [d, *batch, l]",
    BOOLEANS: "; rows are context tokens, columns the tokens that attend to them",
}


class Axes:
    """The sizes of the named axes seen so far, and the argument that gave each of them.

    The size of ``*batch`` is a tuple; ``*stack`` stands for the axes of ``stack``.
    """

    def __init__(self, stack: tuple[str, ...] = ()) -> None:
        self.size: dict[str, Any] = {}
        self.origin: dict[str, str] = {}
        self.stacks = {"*stack": stack, "*stack_kv": (*stack[:-1], *(f"{axis}_kv" for axis in stack[-1:]))}
        self.multiple = {f"{axis}_kv": axis for axis in stack[-1:]}
        self.alias: dict[str, str] = {}

    def check(self, name: str, value: Any, annotation: Any) -> None:
        """Check an argument, or a field of one.

        Raises:
            TypeError: if the value is of another kind.
            ValueError: if its shape or its value is not allowed.
        """
        kinds = alternatives(annotation)
        types = [allowed.type for allowed in kinds]
        if value is None and type(None) in types:
            return
        trees = [allowed for allowed in kinds if fields_of(allowed.type)]
        tree = next((allowed for allowed in trees if isinstance(value, allowed.type)), None)
        if tree is not None:
            self._check_fields(name, value, tree)
            return
        array = next(filter(is_array, types), None)
        if array is None:
            _check_static(name, value, kinds[0])
        elif not _is_number(value, types):
            self._check_array(name, value, array, "".join(f"{words_for(allowed.type)}, or " for allowed in trees))

    def check_lengths(self) -> None:
        """Check that no sequence is longer than the positions allow."""
        longest = self.size.get("l_max")
        for axis in ("l", "l_x", "l_z"):
            l = self.size.get(axis)
            if isinstance(longest, int) and isinstance(l, int) and l > longest:
                raise ValueError(
                    f"{self.origin[axis]}: expected at most l_max = {longest} tokens, got {l}; cut it into chunks, "
                    "or make the parameters with a larger l_max"
                )

    def _check_fields(self, name: str, value: Any, tree: Allowed) -> None:
        """Check the fields of a pytree; the strings in its notes rename axes or add leading ones."""
        words = " ".join(tree.of(str)).split()
        renamed = {theirs: self.alias.get(ours, ours) for theirs, _, ours in (w.partition("=") for w in words) if ours}
        stack = (*self.stacks["*stack"], *(word for word in words if "=" not in word))
        inner = Axes(stack)
        inner.alias = getattr(value, "__axes__", dict)()
        if not renamed:  # its axis names are those of the enclosing signature
            inner.size, inner.origin = self.size, self.origin
        for theirs, ours in [*renamed.items(), *zip(stack, stack, strict=True)]:
            if ours in self.size:
                inner._bind(theirs, self.size[ours], self.origin[ours])
        for field, annotation in fields_of(tree.type).items():
            inner.check(f"{name}.{field}", getattr(value, field), annotation)
        for axis in inner.size.keys() & set(stack):
            self._bind(axis, inner.size[axis], inner.origin[axis])

    def _check_array(self, name: str, value: Any, declared: Any, instead: str) -> None:
        """Check an array; ``instead`` describes the other types that the annotation allows."""
        kind, dtype = KINDS[declared.dtype.__name__]
        words: list[str] = [self.alias.get(word, word) for word in str(declared.dim_str).split()]
        axes = [axis for word in words for axis in self.stacks.get(word, (word,))]
        expected = f"{kind} [{', '.join(axis.replace('#', '') for axis in axes)}]"
        has_shape = hasattr(value, "shape") and hasattr(value, "dtype")
        if kind == KEY:
            check_key(name, value)
        elif not has_shape or not jnp.issubdtype(value.dtype, dtype):
            hint = "; make it an array with jnp.asarray" if isinstance(value, (list, tuple)) and not instead else ""
            raise TypeError(f"{name}: expected {instead}{expected}, got {described(value)}{hint}")
        found = self._sizes_in(axes, value.shape)
        if found is None:
            known = self._known(axes)
            raise ValueError(f"{name}: expected {expected}{known}, got {described(value)}{self._hint(kind)}")
        for axis, size in found.items():
            self._bind(axis, size, name)
        is_sequence = kind == "integers" and axes and axes[-1].startswith("l") and self.origin.get(axes[-1]) == name
        if is_sequence and value.shape[-1] == 0:
            raise ValueError(f"{name}: expected at least one token, got {described(value)}; begin with bos_token")

    def _sizes_in(self, axes: list[str], shape: tuple[Any, ...]) -> dict[str, Any] | None:
        """The size of each axis by this shape, or None if the shape contradicts the axes or a known size."""
        at = next((i for i, axis in enumerate(axes) if "batch" in axis), len(axes))
        named = [*axes[:at], *axes[at + 1 :]]
        n = len(shape) - len(named)
        if n < 0 or (n and at == len(axes)):
            return None
        found: dict[str, Any] = {}
        if at < len(axes) and (n or "#" not in axes[at]):
            found["*batch"] = shape[at : at + n]
            if self.size.get("*batch", found["*batch"]) != found["*batch"]:
                return None
        for axis, size in zip(named, (*shape[:at], *shape[at + n :]), strict=True):
            known = {**self.size, **found}
            factors = axis.split("*")
            if all(factor in known for factor in factors):
                if math.prod(known[factor] for factor in factors) != size:
                    return None
            elif axis in self.multiple and not _divides(size, known.get(self.multiple[axis])):
                return None
            if "*" not in axis:
                found[axis] = size
        return found

    def _bind(self, axis: str, size: Any, origin: str) -> None:
        self.size.setdefault(axis, size)
        self.origin.setdefault(axis, origin)

    def _known(self, axes: list[str]) -> str:
        """The known sizes of these axes and the arguments that gave them, for an error message."""
        found = []
        for name in dict.fromkeys(factor for axis in axes for factor in axis.replace("#", "").lstrip("*").split("*")):
            axis, whole = f"*{name}" if f"*{name}" in self.size else name, self.multiple.get(name)
            if axis in self.size:
                size = self.size[axis]
                found.append(f"{name} = {list(size) if isinstance(size, tuple) else size} from {self.origin[axis]}")
            elif whole in self.size:
                found.append(f"{name} a divisor of {whole} = {self.size[whole]} from {self.origin[whole]}")
        return f" with {', '.join(found)}" if found else ""

    def _hint(self, kind: str) -> str:
        batch = self.size.get("*batch")
        if kind != KEY or not batch:
            return "; give a single one" if kind == KEY else HINTS.get(kind, "")
        shape = batch[0] if len(batch) == 1 else batch
        return f"; give one for each sequence: jax.random.split(key, {shape})"


def check_key(name: str, key: Any) -> None:
    """Check that an argument is a typed key or an array of them.

    Raises:
        TypeError: if it is not.
    """
    if not (isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"{name}: expected a typed key, jax.random.key(seed), got {described(key)}")


def described(value: Any) -> str:
    """A value in a message: an array by dtype and shape, a pytree of arrays by its type, anything else in full."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    holds_arrays = any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(value))
    return type(value).__name__ if holds_arrays else f"{type(value).__name__} {value!r}"[:80]


def _check_static(name: str, value: Any, allowed: Allowed) -> None:
    """Check a static argument, or raise for a value that is not the pytree of parameters expected."""
    kind = allowed.type
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            choices = ", ".join(map(repr, typing.get_args(kind)))
            raise ValueError(f"{name}: expected one of {choices}, got {value!r}")
        return
    numbers = {int: (int, np.integer), float: (int, float, np.number)}.get(kind, kind)
    if not isinstance(value, numbers) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name}: expected {words_for(kind)}, got {described(value)}")
    for note in allowed.of(Range):
        if not note.holds(value):
            raise ValueError(f"{name}: expected {note.says}, got {value}")


def _is_number(value: Any, types: list[Any]) -> bool:
    """Whether a value is a plain number and the types allow one; an int counts as a float, a bool as neither."""
    plain = {int: int, float: (int, float)}
    return any(isinstance(value, plain[kind]) for kind in types if kind in plain) and not isinstance(value, bool)


def _divides(size: Any, whole: Any) -> bool:
    """Whether a size divides another one; True if one of them is unknown or symbolic."""
    return not (isinstance(size, int) and isinstance(whole, int)) or (size > 0 and whole % size == 0)
