"""Annotations of arguments and fields: the types that they allow, and the notes on each.

===================================  ===========================================================================
an annotation                        says
===================================  ===========================================================================
``Float[Array, "d_x *batch l_x"]``   kind and shape; a name that is used twice is one size
``Integer[Array, "*#batch l"]``      the batch axes may be left out
``AttentionParams``                  each field by its own annotation
``Annotated[P, "H"]``                the arrays of P have the axis H in front, in the place of ``*stack``; in the
                                     place of ``*stack_kv`` they have H_kv, a divisor of H
``Annotated[P, "d_x=d_e"]``          what P calls d_x is d_e here, and its other names are its own
``Literal["auto", "paper"]``         a choice
``Annotated[float, Range(…)]``       allowed values, checked where the value is concrete
``Annotated[int, UpTo("l")]``        a number of tokens, or several, of a sequence with the axis l
``Annotated[Any, A, B]``             A or B, hidden from type checkers
``Annotated[T, Relation(…)]``        a function of all arguments that raises where they contradict each other
no array anywhere                    a static argument
===================================  ===========================================================================

A class may have ``__expected__``, the words for it in a message, and ``__relation__``, a `Relation` of each argument of
that class; and ``__axes__``, a method: which of its axes are another one, as the parameters given show.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple


class Range(NamedTuple):
    """The values that an argument may take."""

    says: str  # a description of them
    holds: Callable[[Any], Any]  # whether a value is one of them; of an array, for each entry


class UpTo(NamedTuple):
    """At least 0, and at most the number of tokens of the sequences with this axis."""

    axis: str


class Relation(NamedTuple):
    """What must hold between arguments: a function of all of them by name, which raises where it does not."""

    check: Callable[[Mapping[str, Any]], None]


class Allowed(NamedTuple):
    """A type that an annotation allows, and the notes that ``Annotated`` adds to it."""

    type: Any
    notes: tuple[Any, ...]

    def of(self, kind: Any) -> list[Any]:
        """The notes of a kind."""
        return [note for note in self.notes if isinstance(note, kind)]


@functools.cache
def alternatives(annotation: Any, notes: tuple[Any, ...] = ()) -> tuple[Allowed, ...]:
    """The types that an annotation allows, however ``Annotated`` and ``|`` are nested in it."""
    origin = typing.get_origin(annotation)
    if origin is Annotated and annotation.__origin__ is Any:
        inner = annotation.__metadata__
    elif origin is Annotated:
        inner, notes = (annotation.__origin__,), (*notes, *annotation.__metadata__)
    elif origin in (types.UnionType, typing.Union):
        inner = typing.get_args(annotation)
    else:
        return (Allowed(type(None) if annotation is None else annotation, notes),)
    return tuple(allowed for each in inner for allowed in alternatives(each, notes))


def is_array(kind: Any) -> bool:
    """Whether a type is one of jaxtyping's arrays."""
    return hasattr(kind, "dim_str")


def is_static(annotation: Any) -> bool:
    """Whether an argument holds no array, so that it is compiled in."""
    return not any(is_array(allowed.type) or fields_of(allowed.type) for allowed in alternatives(annotation))


@functools.cache
def fields_of(kind: Any) -> dict[str, Any]:
    """The annotations of a pytree's fields; empty for a class that holds no arrays."""
    fields = kind.__annotations__ if hasattr(kind, "_fields") or dataclasses.is_dataclass(kind) else {}
    return {} if all(map(is_static, fields.values())) else dict(fields)
