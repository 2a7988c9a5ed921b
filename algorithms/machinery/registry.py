"""The registry of the paper's fifteen algorithms."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from algorithms.machinery.compiled import compiled

F = TypeVar("F", bound=Callable[..., Any])


class Algorithm(NamedTuple):
    """An entry of the registry."""

    number: int  # its number in the paper
    name: str  # its name in the paper
    function: Callable[..., Any]  # the public, compiled function
    lines: Callable[..., Any]  # the plain function, whose body has the ``# line n`` tags


REGISTRY: dict[int, Algorithm] = {}
"""Number of an algorithm → its entry; filled by ``@algorithm``."""


def algorithm(number: int, name: str) -> Callable[[F], F]:
    """Compile one of the fifteen algorithms, and register it under the paper's number and name."""

    def register(lines: F) -> F:
        function = compiled(lines)
        REGISTRY[number] = Algorithm(number, name, function, lines)
        return function

    return register
