"""What a wrong edit is."""

import dataclasses

__all__ = ["Mutation"]


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A wrong edit.

    Attributes:
        file: the file of `algorithms/` that it is made in.
        old: text that stands there once.
        new: what is put in its place.
        algorithm: the algorithm that it spoils first.
        line: the line of it that the cross-check must name; None where the paper's lines, run as printed on valid input in
            float64, compute the same as before.
        tests: what must catch it, as pytest names it: one of these must fail.
    """

    file: str
    old: str
    new: str
    algorithm: int
    line: str | None
    tests: tuple[str, ...]
