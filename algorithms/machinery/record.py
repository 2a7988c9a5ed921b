"""Records: frozen dataclasses that compare, hash and are written as JSON by their fields.

So a record is a static argument of ``jax.jit`` that compiles once however it was put together, and a run directory
can keep it. Subclasses are dataclasses with ``frozen=True, kw_only=True``.
"""

import dataclasses
import functools
import typing
from typing import Any, ClassVar, Literal, TypeVar

from algorithms.machinery.annotations import alternatives

R = TypeVar("R", bound="Record")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """What all records share: the changed copy, JSON, and the check of their fields."""

    _kinds: ClassVar[dict[str, type["Record"]]] = {}

    def __init_subclass__(cls) -> None:
        Record._kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Check each field against its annotation.

        Raises:
            ValueError: if a field has a value that its annotation does not allow.
        """
        for field, allowed in _annotations(type(self)).items():
            value = getattr(self, field)
            if not any(_fits(value, kind) for kind in allowed):
                self.refuse(field, " or ".join(map(_words, allowed)))

    def but(self: R, **changes: Any) -> R:
        """The same record with these fields changed.

        Raises:
            ValueError: if it has no such field.
        """
        fields = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in fields:
                raise ValueError(f"{type(self).__name__}.{name}: expected one of the fields {', '.join(fields)}")
        return dataclasses.replace(self, **changes)

    def refuse(self, field: str, expected: str) -> typing.NoReturn:
        """Raise ValueError for the value of a field."""
        raise ValueError(f"{type(self).__name__}.{field}: expected {expected}, got {getattr(self, field)!r}")

    def to_json(self) -> dict[str, Any]:
        """The name of the class and the fields that differ from their defaults."""
        written: dict[str, Any] = {"record": type(self).__name__}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                written[field.name] = _to_json(value)
        return written

    @staticmethod
    def from_json(written: Any) -> Any:
        """The record that ``to_json`` wrote.

        Raises:
            ValueError: if it did not write this.
        """
        kind = Record._kinds.get(written.get("record", "")) if isinstance(written, dict) else None
        if kind is None:
            raise ValueError(f"record: expected one of {', '.join(sorted(Record._kinds))}, got {written!r}"[:300])
        fields = {name: _from_json(value) for name, value in written.items() if name != "record"}
        try:
            return kind(**fields)
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from None


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(v) for v in value]
    return value.to_json() if isinstance(value, Record) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(v) for v in value)
    return Record.from_json(value) if isinstance(value, dict) else value


@functools.cache
def _annotations(cls: type) -> dict[str, tuple[Any, ...]]:
    """The kinds of values that each field may have."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    return {name: tuple(kind.type for kind in alternatives(hints[name])) for name in names}


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_fits(v, typing.get_args(kind)[0]) for v in value)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    words = {float: "a number", int: "an integer", type(None): "None"}
    return words.get(kind) or getattr(kind, "__name__", str(kind))
