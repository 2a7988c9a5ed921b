"""The uniform decorator of the fifteen algorithms, and the registry that it fills.

``@algorithm(10, "DTransformer", …)`` checks a function's input, compiles it with ``jax.jit``, lets ``jax.vmap`` make
its matrices wider (``algorithms.batching``), and records its number and the paper's name, which the README's table, the
cross-check and the documentation read. The function that it decorates stays available as ``lines(function)``.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax

from algorithms.batching import PerSequence, side_by_side

__all__ = ["REGISTRY", "Algorithm", "algorithm", "compiled", "lines"]

F = TypeVar("F", bound=Callable[..., Any])


class Algorithm(NamedTuple):
    """An entry of the registry.

    Attributes:
        number: the number that the paper gives it.
        name: the name that the paper gives it.
        function: the public, compiled function.
        lines: the undecorated function, whose body carries the ``# line n`` tags.
    """

    number: int
    name: str
    function: Callable[..., Any]
    lines: Callable[..., Any]


REGISTRY: dict[int, Algorithm] = {}
"""Number of an algorithm → its entry. Filled by importing ``algorithms``."""


def algorithm(
    number: int,
    name: str,
    *,
    check: Callable[..., None],
    static: tuple[str, ...] = (),
    sequences: Mapping[str, Callable[[Any], PerSequence]] | None = None,
    check_values: Callable[..., None] | None = None,
) -> Callable[[F], F]:
    """Compile a function and register it.

    Args:
        number: the paper's number of the algorithm.
        name: the paper's name of it.
        check: called with the function's arguments whenever it is traced; raises ValueError or TypeError.
        static: names of the arguments that are compiled in.
        sequences: for each argument that belongs to one sequence, how its batch axes stand; the body then takes any
            number of sequences side by side. None where plain batching serves.
        check_values: called with the arguments before every run, for what is wrong by its value (a temperature < 0).
    """

    def decorate(body: F) -> F:
        function = compiled(check=check, static=static, sequences=sequences, check_values=check_values)(body)
        REGISTRY[number] = Algorithm(number, name, function, body)
        return function

    return decorate


def compiled(
    *,
    check: Callable[..., None],
    static: tuple[str, ...] = (),
    sequences: Mapping[str, Callable[[Any], PerSequence]] | None = None,
    check_values: Callable[..., None] | None = None,
) -> Callable[[F], F]:
    """Compile a function that the paper gives no number; the arguments are those of ``algorithm``."""

    def decorate(body: F) -> Any:
        signature = inspect.signature(body)

        @functools.wraps(body)
        def checked(*args, **kwargs):
            check(*args, **kwargs)
            if sequences is None:
                return body(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return _widened(body, bound.arguments, sequences, static)

        jitted = jax.jit(checked, static_argnames=static)
        return jitted if check_values is None else _after(check_values, jitted)

    return decorate


def lines(function: F) -> F:
    """The body of a compiled function: unchecked, uncompiled, for any number of sequences side by side."""
    return inspect.unwrap(function)


def _widened(body, arguments: dict[str, Any], sequences: Mapping[str, Callable], static: tuple[str, ...]) -> Any:
    own = {name: of_sequence(arguments[name]) for name, of_sequence in sequences.items()}
    fixed = {name: arguments[name] for name in static}
    shared = {name: value for name, value in arguments.items() if name not in own and name not in fixed}

    def wide_body(*arrays_and_shared):
        *arrays, shared = arrays_and_shared
        return body(**dict(zip(own, arrays, strict=True)), **shared, **fixed)

    return side_by_side(wide_body, list(own.values()), shared)


def _after(check_values: Callable[..., None], jitted: Any) -> Any:
    """``jitted``, with a check of its arguments' values in front, and with the methods of a compiled function."""

    @functools.wraps(jitted)
    def function(*args, **kwargs):
        check_values(*args, **kwargs)
        return jitted(*args, **kwargs)

    for method in ("lower", "trace", "eval_shape", "clear_cache", "_cache_size"):
        setattr(function, method, getattr(jitted, method))
    return function
