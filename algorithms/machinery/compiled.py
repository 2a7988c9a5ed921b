"""From a plain function to a public one: checked by its contract, compiled, and, if it has a number, registered."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax

from algorithms.machinery.contract import contract_of

F = TypeVar("F", bound=Callable[..., Any])


class Algorithm(NamedTuple):
    """An entry of the registry.

    Attributes:
        number: the number that the paper gives it.
        name: the name that the paper gives it.
        function: the public, compiled function.
        lines: the plain function, whose body carries the ``# line n`` tags.
    """

    number: int
    name: str
    function: Callable[..., Any]
    lines: Callable[..., Any]


REGISTRY: dict[int, Algorithm] = {}
"""Number of an algorithm → its entry. Filled by the table in ``algorithms``."""


def algorithm(number: int, name: str, function: F) -> F:
    """Compile one of the fifteen, and register it under the paper's number and name."""
    public = compiled(function)
    REGISTRY[number] = Algorithm(number, name, public, function)
    return public


def compiled(function: F) -> F:
    """Check a function's arguments by its signature, and compile it with ``jax.jit``."""
    contract = contract_of(function)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        contract.check(*args, **kwargs)
        return function(*args, **kwargs)

    jitted: Any = jax.jit(checked, static_argnames=contract.static)

    @functools.wraps(function)
    def public(*args, **kwargs):
        if contract.check_values is not None:
            contract.check_values(*args, **kwargs)
        try:
            return jitted(*args, **kwargs)
        except TypeError as error:
            if "forward-mode" not in str(error) or "custom_vjp" not in str(error):
                raise
            raise TypeError(
                f"{function.__name__}: forward-mode differentiation (jax.jvp, jax.jacfwd, jax.linearize) of a backward "
                'pass derived by hand, which has reverse mode only; give implementation="paper", which JAX '
                "differentiates itself, to any order"
            ) from error

    for method in ("lower", "trace", "eval_shape", "clear_cache", "_cache_size"):
        setattr(public, method, getattr(jitted, method))
    return public  # pyright: ignore[reportReturnType]
