"""What a wrong edit is."""

import dataclasses

__all__ = ["Mutation"]


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A wrong edit of one statement.

    Attributes:
        file: the file that it is made in, from the root of the repository.
        function: the function, as Python qualifies its name, without ``<locals>``: ``"hidden_state.layer"``; ``""`` for
            the module.
        statement: which of its statements: the paper's line that its tag names, the name that it assigns, or
            ``"return"``. For a compound statement or a decorated function, its head is meant: ``"if"``, or its name.
        old: what is replaced: tokens that occur once in these statements, however they are spaced or broken.
        new: what is put in its place.
        algorithm: the algorithm that it spoils first.
        line: the line of it that the cross-check must name; None where the lines, run as printed on valid input in float64,
            compute the same as before.
        tests: what must catch it, as pytest names it: one of these must fail.
        variant: the name of the variant whose cross-check must name the line, where the paper's lines stay right.
    """

    file: str
    function: str
    statement: str
    old: str
    new: str
    algorithm: int
    line: str | None
    tests: tuple[str, ...]
    variant: str | None = None
