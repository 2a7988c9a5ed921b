"""The contract of a function, read from its signature: static arguments, checks, and error messages.

`algorithms.machinery.annotations` says what each annotation means. Everything except the values of arrays is checked
when a function is traced, so compiled calls pay nothing for it.
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.core import Tracer

from algorithms.machinery.annotations import Range, Relation, UpTo, alternatives, is_array, is_static
from algorithms.machinery.axes import Axes, described


class Contract(NamedTuple):
    """The contract that a signature states."""

    static: tuple[str, ...]  # names of the arguments that are compiled in
    check: Callable[..., None]  # takes the function's arguments; raises TypeError or ValueError if they are invalid
    check_values: Callable[..., None] | None  # the same for the values of arrays; None if any value is allowed


def contract_of(function: Callable[..., Any]) -> Contract:
    """Read the contract of a function from its signature."""
    signature = inspect.signature(function)
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    static = tuple(name for name, annotation in annotations.items() if is_static(annotation))
    relations = {name: _notes(annotation, Relation) for name, annotation in annotations.items()}
    values = {name: _notes(annotations[name], (Range, UpTo)) for name in annotations.keys() - set(static)}

    def check(*args, **kwargs):
        arguments, axes = _bound(function, signature, args, kwargs), Axes()
        for name, value in arguments.items():
            axes.check(name, value, annotations[name])
        axes.check_lengths()
        for name, value in arguments.items():
            of_class = getattr(type(value), "__relation__", None)
            for relation in (*relations[name], *([of_class] if of_class else [])):
                relation.check(arguments)

    def check_values(*args, **kwargs):
        arguments = _bound(function, signature, args, kwargs)
        for name, notes in values.items():
            for note in notes if arguments[name] is not None else ():
                allowed = note if isinstance(note, Range) else _numbers_of_tokens(note.axis, arguments, annotations)
                if allowed is not None:
                    check_value(name, arguments[name], allowed)

    return Contract(static, check, check_values if any(values.values()) else None)


def _bound(function: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None
    bound.apply_defaults()
    return bound.arguments


def _notes(annotation: Any, kind: Any) -> list[Any]:
    """The notes of this kind on all types that the annotation allows."""
    return list(dict.fromkeys(note for allowed in alternatives(annotation) for note in allowed.of(kind)))


def _numbers_of_tokens(axis: str, arguments: dict[str, Any], annotations: dict[str, Any]) -> Range | None:
    """The range from 0 to the size of this axis, or None if that size is unknown."""
    sequence = next(name for name, annotation in annotations.items() if _ends_with(annotation, axis))
    size = getattr(arguments[sequence], "shape", ())[-1:]
    return _at_most(axis, *size) if size and isinstance(size[0], int) else None


def _ends_with(annotation: Any, axis: str) -> bool:
    types = (allowed.type for allowed in alternatives(annotation))
    return any(is_array(kind) and kind.dim_str.split()[-1:] == [axis] for kind in types)


@functools.cache
def _at_most(axis: str, l: int) -> Range:
    return Range(f"at least 0 and at most {axis} = {l} tokens", lambda n: (n >= 0) & (n <= l))


_PASSED: weakref.WeakValueDictionary[tuple[int, Range], Array] = weakref.WeakValueDictionary()
"""The JAX arrays that passed a check, by identity and range, as long as they live."""


def check_value(name: str, value: Any, allowed: Range) -> None:
    """Check the values of an argument, if they are concrete.

    Reading a JAX array means waiting for it and copying it from its device, so each is read once, not on every call.
    Traced arrays, and those with shards on other processes, cannot be read and are not checked.

    Raises:
        TypeError: if the value is not a number.
        ValueError: if it is out of range.
    """
    on_device = isinstance(value, Array)
    if isinstance(value, Tracer) or (on_device and not value.is_fully_addressable):
        return
    if on_device and _PASSED.get((id(value), allowed)) is value:
        return
    with jax.transfer_guard_device_to_host("allow"):
        values = np.asarray(value)
    if values.dtype.kind in "OSU":
        raise TypeError(f"{name}: expected a number, got {described(value)}")
    if not np.all(allowed.holds(values)):
        raise ValueError(f"{name}: expected {allowed.says}, got {value}")
    if on_device:
        _PASSED[id(value), allowed] = value
