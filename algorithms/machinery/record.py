"""Records: frozen dataclasses that compare, hash and serialize to JSON by their fields.

So equal records, as static arguments of ``jax.jit``, share one compilation, and a run directory can store them.
Subclasses are dataclasses with ``frozen=True, kw_only=True``.
"""

import dataclasses
import functools
import typing
from typing import Any, ClassVar, Literal, TypeVar

from algorithms.machinery.annotations import alternatives, words_for

R = TypeVar("R", bound="Record")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """The base class of all records: checks of the fields, changed copies, and JSON."""

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
                self.refuse(field, " or ".join(map(words_for, allowed)))

    def but(self: R, **changes: Any) -> R:
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
            ValueError: if this is not the JSON of a record.
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
    """The types that each field allows."""
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
