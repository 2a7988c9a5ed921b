"""What the annotations of arguments and fields mean: the types that they allow, and the notes on each type.

===================================  ===========================================================================
an annotation                        means
===================================  ===========================================================================
``Float[Array, "d_x *batch l_x"]``   kind and shape; axes with the same name have the same size
``Integer[Array, "*#batch l"]``      the batch axes may be left out
``AttentionParams``                  a pytree, each field checked against its own annotation
``Annotated[P, "H"]``                ``*stack`` in P stands for the leading axis H, and ``*stack_kv`` for the
                                     leading axis H_kv, a divisor of H
``Annotated[P, "d_x=d_e"]``          the axis d_x of P is d_e here; its other axis names are local to P
``Literal["auto", "paper"]``         a choice
``Annotated[float, Range(…)]``       allowed values, checked if the value is concrete
``Annotated[int, UpTo("l")]``        one or several numbers of tokens, at most the size of the axis l
``Annotated[Any, A, B]``             A or B, hidden from type checkers
``Annotated[T, Relation(…)]``        a function of all arguments that raises if they contradict each other
no array anywhere                    a static argument
===================================  ===========================================================================

A class may define ``__expected__``, its description in error messages; ``__relation__``, a `Relation` that each
argument of the class must satisfy; and ``__axes__``, a method that returns which of its axis names stand for others,
given the parameters' values.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple


class Range(NamedTuple):
    """The values that an argument may take."""

    says: str  # their description in error messages
    holds: Callable[[Any], Any]  # whether a value is allowed; elementwise for an array


class UpTo(NamedTuple):
    """At least 0, and at most the number of tokens of the sequences with this axis."""

    axis: str


class Relation(NamedTuple):
    """A constraint between arguments: a function of all arguments by name that raises if it is violated."""

    check: Callable[[Mapping[str, Any]], None]


class Allowed(NamedTuple):
    """A type that an annotation allows, and the notes that ``Annotated`` adds to it."""

    type: Any
    notes: tuple[Any, ...]

    def of(self, kind: Any) -> list[Any]:
        """The notes of this kind."""
        return [note for note in self.notes if isinstance(note, kind)]


@functools.cache
def alternatives(annotation: Any, notes: tuple[Any, ...] = ()) -> tuple[Allowed, ...]:
    """The types that an annotation allows, with any nesting of ``Annotated`` and ``|``."""
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
    """Whether an argument holds no array and is therefore compiled in."""
    return not any(is_array(allowed.type) or fields_of(allowed.type) for allowed in alternatives(annotation))


@functools.cache
def fields_of(kind: Any) -> dict[str, Any]:
    """The annotations of a pytree's fields; empty for a class that holds no arrays."""
    fields = kind.__annotations__ if hasattr(kind, "_fields") or dataclasses.is_dataclass(kind) else {}
    return {} if all(map(is_static, fields.values())) else dict(fields)


def words_for(kind: Any) -> str:
    """The description of a type in error messages."""
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    words = {int: "an integer", float: "a number", type(None): "None"}
    return words.get(kind) or getattr(kind, "__expected__", None) or getattr(kind, "__name__", str(kind))
