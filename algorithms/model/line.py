"""The base class of a variant's lines: which parameters a line has, by its fields."""

import dataclasses
from typing import ClassVar

from algorithms.machinery.record import Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line(Record):
    """A line that published models change: its formula is ``__call__``, its numbers and choices are its fields.

    The axes of its parameters are in the annotations of their class in ``algorithms.parameters``.
    """

    # parameter → the fields that decide whether it is there: ``"gated biases"`` if both of them are set,
    # ``"biases=True,qkv"`` if that field has one of these values, ``"never"``. All others always are
    optional: ClassVar[dict[str, str]] = {}

    def has(self, parameter: str) -> tuple[bool, str]:
        """Whether the line has a parameter, and which fields decide it, in words; none if it always has."""
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
