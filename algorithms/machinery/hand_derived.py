"""Backward passes derived by hand, registered with ``jax.custom_vjp``."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from algorithms.machinery.varying import match_varying_axes


def hand_derived(
    function: Callable[..., Any],
    forward: Callable[..., tuple[Any, Any]],
    backward: Callable[..., tuple[Any, ...]],
    static: tuple[int, ...] = (),
) -> Callable[..., Any]:
    """``function`` with this backward pass, in reverse mode; in forward mode JAX raises TypeError. ``forward``
    returns the value and the residuals; ``backward`` takes the ``static`` arguments, which are not arrays, the
    residuals and the cotangent, and returns the gradient by each other argument.
    """
    rule = jax.custom_vjp(function, nondiff_argnums=static)
    rule.defvjp(forward, backward)

    @functools.wraps(function)
    def differentiable(*arguments):
        return rule(*match_varying_axes(arguments))

    return differentiable
