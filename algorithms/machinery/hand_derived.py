"""Backward passes derived by hand, registered with ``jax.custom_vjp``."""

from collections.abc import Callable
from typing import Any

import jax

from algorithms.machinery.varying import match_varying_axes


def hand_derived(
    forward: Callable[..., tuple[Any, Any]], backward: Callable[..., tuple[Any, ...]], static: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """The function that ``forward`` computes, with a reverse-mode rule; in forward mode JAX raises TypeError.

    Args:
        forward: returns the value and the residuals.
        backward: takes the static arguments, the residuals and the cotangent; returns the gradient of each argument
            that is not static.
        static: the positions of the arguments that are not arrays.
    """
    rule = jax.custom_vjp(lambda *arguments: forward(*arguments)[0], nondiff_argnums=static)
    rule.defvjp(forward, backward)
    return lambda *arguments: rule(*match_varying_axes(arguments))
