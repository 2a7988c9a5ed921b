"""Running the shipped functions so that their lines can be observed: eagerly."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import jax

__all__ = ["observable"]


@contextlib.contextmanager
def observable(package: ModuleType) -> Iterator[None]:
    """Execute every statement as it is reached, instead of compiling the functions first.

    Loops over layers and steps become Python's, and each value is there when its statement is done. Hand-derived rules,
    which have no lines of their own to observe, stay compiled.

    `package`: the package `algorithms`, or a mutated copy of it.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{package.__name__}."):
                for attribute, value in list(vars(module).items()):
                    rule = _rule_of(value)
                    if rule is not None:
                        stack.enter_context(mock.patch.object(module, attribute, _compiled(value, rule)))
        yield


def _rule_of(value: Any) -> Any:
    """The `jax.custom_vjp` that a function of `hand_derived` holds; None of anything else."""
    while inspect.isfunction(value):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        rule = next((content for content in held if isinstance(content, jax.custom_vjp)), None)
        if rule is not None:
            return rule
        value = getattr(value, "__wrapped__", None)  # by the tests' check of signatures
    return None


def _compiled(function: Callable[..., Any], rule: Any) -> Callable[..., Any]:
    jitted = jax.jit(function, static_argnums=rule.nondiff_argnums)

    def call(*arguments: Any) -> Any:
        with jax.disable_jit(False):
            return jitted(*arguments)

    return call
