"""The registry of the paper's fifteen algorithms."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from algorithms.machinery.compiled import compiled

F = TypeVar("F", bound=Callable[..., Any])


class Algorithm(NamedTuple):
    """An entry of the registry."""

    number: int  # the number that the paper gives it
    name: str  # the name that the paper gives it
    function: Callable[..., Any]  # the public, compiled function
    lines: Callable[..., Any]  # the plain function, whose body carries the ``# line n`` tags


REGISTRY: dict[int, Algorithm] = {}
"""Number of an algorithm → its entry. Filled where the algorithms are defined."""


def algorithm(number: int, name: str) -> Callable[[F], F]:
    """Compile one of the fifteen, and register it under the paper's number and name."""

    def register(lines: F) -> F:
        function = compiled(lines)
        REGISTRY[number] = Algorithm(number, name, function, lines)
        return function

    return register
