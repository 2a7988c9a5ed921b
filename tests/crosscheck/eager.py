"""Running the shipped functions so that their lines can be observed: eagerly, with the implementation asked for."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import jax

__all__ = ["observable"]


@contextlib.contextmanager
def observable(package: ModuleType, implementation: str) -> Iterator[None]:
    """Execute every statement as it is reached, instead of compiling the functions first.

    Loops over layers and steps become Python's, and each value is there when its statement is done. Algorithms 11-15,
    which leave the choice of the implementation to the functions that they call, have these called with the one asked
    for. Hand-derived rules, which have no lines of their own to observe, stay compiled.

    Args:
        package: the package `algorithms`, or a mutated copy of it.
        implementation: the implementation asked for.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{package.__name__}."):
                _patch(stack, module, implementation)
        yield


def _patch(stack: contextlib.ExitStack, module: ModuleType, implementation: str) -> None:
    callers = module.__name__.endswith((".training", ".inference"))
    for name, value in list(vars(module).items()):
        if isinstance(value, jax.custom_vjp):
            stack.enter_context(mock.patch.object(module, name, _compiled(value)))
        elif callers and callable(value) and "implementation" in _parameters(value):
            asked = functools.partial(value, implementation=implementation)
            stack.enter_context(mock.patch.object(module, name, asked))


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except ValueError:
        return ()


def _compiled(rule: Any) -> Callable[..., Any]:
    jitted = jax.jit(rule, static_argnums=rule.nondiff_argnums)

    def call(*arguments: Any) -> Any:
        with jax.disable_jit(False):
            return jitted(*arguments)

    return call
