"""Backward passes derived by hand, registered with ``jax.custom_vjp``."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from algorithms.machinery.varying import match_varying_axes


@dataclasses.dataclass(frozen=True)
class HandDerived:
    """The function that ``forward`` computes, with a reverse-mode rule; in forward mode JAX raises TypeError."""

    forward: Callable[..., tuple[Any, Any]]  # returns the value and the residuals
    backward: Callable[..., tuple[Any, ...]]  # static arguments, residuals, cotangent → gradients of all others
    rule: Callable[..., Any]  # both, as one function

    def __call__(self, *arguments: Any) -> Any:
        """The value."""
        return self.rule(*match_varying_axes(arguments))


def hand_derived(
    forward: Callable[..., tuple[Any, Any]], backward: Callable[..., tuple[Any, ...]], static: tuple[int, ...] = ()
) -> HandDerived:
    """Register a forward pass and its backward pass.

    Args:
        forward: returns the value and the residuals.
        backward: takes the static arguments, the residuals and the cotangent; returns the gradient of each argument
            that is not static.
        static: the positions of the arguments that are not arrays.
    """
    rule = jax.custom_vjp(lambda *arguments: forward(*arguments)[0], nondiff_argnums=static)
    rule.defvjp(forward, backward)
    return HandDerived(forward, backward, rule)
