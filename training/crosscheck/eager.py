"""Running the shipped functions so that their lines can be observed: eagerly."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import jax

__all__ = ["choices", "observable"]


@contextlib.contextmanager
def observable(package: ModuleType) -> Iterator[None]:
    """Execute every statement as it is reached, instead of compiling the functions first.

    Loops over layers and steps become Python's, and each value is there when its statement is done. What has no lines of
    its own to observe stays compiled: what has a hand-derived rule, and the shift of the softmax.

    `package`: the package `algorithms`, or a mutated copy of it.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        for name, module in list(sys.modules.items()):
            for attribute, value in list(vars(module).items()) if name.startswith(f"{package.__name__}.") else ():
                rule = getattr(value, "rule", None)  # of a function that `hand_derived` made
                if isinstance(rule, jax.custom_vjp):
                    stack.enter_context(mock.patch.object(module, attribute, _compiled(value, rule.nondiff_argnums)))
        activation = sys.modules[f"{package.__name__}.ops.activation"]
        stack.enter_context(mock.patch.object(activation, "shifted", _compiled(activation.shifted, ())))
        yield


@contextlib.contextmanager
def choices(package: ModuleType) -> Iterator[set[str]]:
    """The implementations that "auto" takes while the context lasts, filled as they are taken.

    `package`: the package `algorithms`, or a mutated copy of it.
    """
    dispatch, taken = sys.modules[f"{package.__name__}.ops.attention.dispatch"], set()
    automatic = dispatch.automatic

    @functools.wraps(automatic)
    def noted(*args: Any, **kwargs: Any) -> str:
        name = automatic(*args, **kwargs)
        taken.add(name)
        return name

    with mock.patch.object(dispatch, "automatic", noted):
        yield taken


def _compiled(function: Callable[..., Any], static: tuple[int, ...]) -> Callable[..., Any]:
    jitted = jax.jit(function, static_argnums=static)

    def call(*arguments: Any) -> Any:
        with jax.disable_jit(False):
            return jitted(*arguments)

    return call
