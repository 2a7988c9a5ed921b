"""Records: frozen dataclasses that compare, hash and serialize by their fields; and what annotations allow.

Equal records, as static arguments of ``jax.jit``, share one compilation, and a run directory can store them. Subclasses
are dataclasses with ``frozen=True, kw_only=True``.
"""

import contextlib
import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, ParamSpec, TypeVar

import jax
import jax.export
import numpy as np

C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R", bound="Record")


class Range(NamedTuple):
    """The values that an argument may take."""

    says: str  # their description in error messages
    holds: Callable[[Any], Any]  # whether a value is allowed; elementwise for an array


Positive = Annotated[float, Range("a finite number > 0", lambda n: 0 < n < math.inf)]
Count = Annotated[int, Range("a number >= 1", lambda n: n >= 1)]


class Allowed(NamedTuple):
    """A type that an annotation allows, and the notes that ``Annotated`` adds to it."""

    type: Any
    notes: tuple[Any, ...]


@functools.cache
def alternatives(annotation: Any) -> tuple[Allowed, ...]:
    """The types that an annotation allows, through any nesting of ``Annotated`` and ``|``."""
    origin, inner, notes = typing.get_origin(annotation), typing.get_args(annotation), ()
    if origin is Annotated and inner[0] is Any:
        inner = inner[1:]
    elif origin is Annotated:
        inner, notes = inner[:1], inner[1:]
    elif origin not in (types.UnionType, typing.Union):
        return (Allowed(type(None) if annotation is None else annotation, ()),)
    return tuple(Allowed(a.type, (*a.notes, *notes)) for each in inner for a in alternatives(each))


def words_for(kind: Any) -> str:
    """The description of a type in error messages."""
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(kind)))}"
    words = {int: "an integer", float: "a number", type(None): "None"}
    return words.get(kind) or getattr(kind, "__expected__", None) or getattr(kind, "__name__", str(kind))


def refusal(value: Any, annotation: Any) -> tuple[type[Exception], str] | None:
    """The error for a value that an annotation without arrays does not allow, and what it expects; otherwise None."""
    kinds = alternatives(annotation)
    for kind in kinds:
        if fits(value, kind.type):
            break
    else:
        is_choice = any(typing.get_origin(kind.type) is Literal for kind in kinds)
        return ValueError if is_choice else TypeError, " or ".join(words_for(kind.type) for kind in kinds)
    for note in kind.notes:
        if isinstance(note, Range) and value is not None and not note.holds(value):
            or_none = ", or None" if type(None) in (kind.type for kind in kinds) else ""
            return ValueError, f"{note.says}{or_none}"
    return None


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type without arrays; an int counts as a float, a bool only as a bool."""
    if typing.get_origin(kind) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(fits(v, typing.get_args(kind)[0]) for v in value)
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))


def as_number(value: Any) -> Any:
    """A number of NumPy as one of Python, which hashes and compiles like any other."""
    return value.item() if isinstance(value, np.generic) else value


@functools.cache
def annotations_of(cls: type) -> dict[str, Any]:
    """The annotation of each field of a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check_fields(record: Any) -> None:
    """Check each field of a dataclass against its annotation; a field may be None if that is its default.

    Numbers of NumPy become Python's, so that equal records are written as the same JSON.

    Raises:
        TypeError: if a field has a value of another kind.
        ValueError: if it has one that is not allowed.
    """
    for field in dataclasses.fields(record):
        value = as_number(getattr(record, field.name))
        object.__setattr__(record, field.name, value)
        refused = refusal(value, annotations_of(type(record))[field.name])
        if refused is not None and not (value is None and field.default is None):
            kind = next((v for v in (value if isinstance(value, tuple) else [value]) if isinstance(v, type)), None)
            hint = f"; give an instance, {kind.__name__}(…)" if kind else ""
            raise refused[0](f"{type(record).__name__}.{field.name}: expected {refused[1]}, got {value!r}{hint}")


class _TakesFields:
    """A method whose arguments type checkers read from its class's constructor."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.__wrapped__, self.__doc__ = method, method.__doc__

    def __get__(self, record: Any, kind: Callable[P, R]) -> Callable[P, R]:
        return self.__wrapped__ if record is None else functools.partial(self.__wrapped__, record)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """The base class of all records: checks of the fields, changed copies, and JSON."""

    _kinds: ClassVar[dict[str, type["Record"]]] = {}  # name of a class in JSON → the class

    def __init_subclass__(cls) -> None:
        Record._kinds[_name_in_json(cls)] = cls
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Record.__repr__  # not that of dataclasses, with all fields

    def __post_init__(self) -> None:
        """Check each field against its annotation.

        Raises:
            ValueError: if a field has a value that its annotation does not allow.
        """
        try:
            check_fields(self)
        except TypeError as error:
            raise ValueError(*error.args) from None

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return f"{type(self).__name__}({as_arguments(self.changes())})"

    def changes(self, base: "Record | None" = None) -> dict[str, Any]:
        """The fields that differ from another record's, or from their defaults."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        before = {f.name: f.default if base is None else getattr(base, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in found.items() if value != before[name]}

    @_TakesFields
    def but(self, **changes: Any) -> Any:
        """A copy with these fields changed.

        Raises:
            ValueError: if there is no such field.
        """
        fields = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in fields:
                raise ValueError(f"{type(self).__name__}.{name}: expected one of the fields {', '.join(fields)}")
        return dataclasses.replace(self, **changes)

    def refuse(self, field: str, expected: str) -> typing.NoReturn:
        """Raise ValueError: this field does not have the expected value."""
        raise ValueError(f"{type(self).__name__}.{field}: expected {expected}, got {getattr(self, field)!r}")

    def to_json(self) -> dict[str, Any]:
        """The name of the class, with its module unless it is one of ours, and the fields that are not the default."""
        return {"record": _name_in_json(type(self))} | {name: _to_json(value) for name, value in self.changes().items()}

    @staticmethod
    def from_json(written: Any) -> Any:
        """The record that ``to_json`` wrote.

        Raises:
            ValueError: if this is not the JSON of a record.
        """
        kind = _kind(str(written.get("record"))) if isinstance(written, dict) else None
        if kind is None:
            known = ", ".join(sorted(Record._kinds))
            raise ValueError(
                f"record: expected one of {known}, got {str(written)[:200]}; import the module of a custom class"
            )
        fields = {name: _from_json(value) for name, value in written.items() if name != "record"}
        try:
            return kind(**fields)
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from None


def _name_in_json(kind: type) -> str:
    """The name of a class: bare for a class of this package, and with the module for any other, ``study:MLP``."""
    ours = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    return kind.__qualname__ if ours else f"{kind.__module__}:{kind.__qualname__}"


def _kind(name: str) -> type[Record] | None:
    """The class that ``_name_in_json`` named; for a name without a module, or of a script, the only one so called."""
    if name in Record._kinds:
        return Record._kinds[name]
    module, _, bare = name.rpartition(":")
    called_so = [kind for other, kind in Record._kinds.items() if other.rpartition(":")[2] == bare]
    return called_so[0] if module in ("", "__main__") and len(called_so) == 1 else None


def as_arguments(fields: dict[str, Any]) -> str:
    """``name=value, …``."""
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(v) for v in value]
    return value.to_json() if isinstance(value, Record) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(v) for v in value)
    return Record.from_json(value) if isinstance(value, dict) else value


def serializable(kind: C) -> C:
    """Register a NamedTuple, or a record that is a static node of pytrees, with ``jax.export`` as ``algorithms.NAME``.

    The serialized program contains the record's JSON.
    """
    options: Any = {"serialized_name": f"algorithms.{kind.__name__}"}
    with contextlib.suppress(ValueError):  # another copy of this package has registered its class by this name
        if hasattr(kind, "_fields"):
            jax.export.register_namedtuple_serialization(kind, **options)
        else:
            jax.export.register_pytree_node_serialization(
                kind,
                serialize_auxdata=lambda record: json.dumps(record.to_json()).encode(),
                deserialize_auxdata=lambda written: Record.from_json(json.loads(written)),
                **options | {"from_children": lambda record, _: record},
            )
    return kind
