"""The base class of a variant's lines: the checks of its fields, and the parameters that they call for."""

import dataclasses
import functools
import typing
from typing import ClassVar

from algorithms.machinery.annotations import Allowed, Range, alternatives
from algorithms.machinery.record import Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line(Record):
    """A line that published models change: its formula is ``__call__``, its choices are its fields.

    The axes of its parameters are in the annotations of their class in ``algorithms.parameters``.
    """

    # optional parameter → the fields that decide whether the line has it: ``"gated biases"`` if both of them are set,
    # ``"biases=True,qkv"`` if that field has one of these values, ``"never"``. It has all parameters not named here
    optional: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        """Check each field against its annotation.

        Raises:
            ValueError: if a field has a value that its annotation does not allow.
        """
        super().__post_init__()
        for field, (kind, *others) in _kinds(type(self)).items():
            value, or_none = getattr(self, field), ", or None" if others else ""
            for allowed in kind.of(Range):
                if value is not None and not allowed.holds(value):
                    self.refuse(field, f"{allowed.says}{or_none}")

    def has(self, parameter: str) -> tuple[bool, str]:
        """Whether the line has a parameter, and the fields that decide it, for messages; "" if none do."""
        condition = self.optional.get(parameter, "")
        name = type(self).__name__
        if condition == "never":
            return False, f"{name} has no {parameter}"
        fields = [term.partition("=") for term in condition.split()]
        given = all(
            str(getattr(self, field)) in allowed.split(",") if allowed else getattr(self, field)
            for field, _, allowed in fields
        )
        since = " and ".join(f"{field} = {getattr(self, field)!r}" for field, _, _ in fields)
        return bool(given), f"{name} has {since}" if since else ""


@functools.cache
def _kinds(line: type[Line]) -> dict[str, tuple[Allowed, ...]]:
    hints = typing.get_type_hints(line, include_extras=True)
    return {field.name: alternatives(hints[field.name]) for field in dataclasses.fields(line)}
