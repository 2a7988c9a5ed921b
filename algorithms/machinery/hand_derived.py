"""Backward passes derived by hand, registered with ``jax.custom_vjp``."""

from collections.abc import Callable
from typing import Any

import jax

from algorithms.machinery.varying import match_varying_axes


def hand_derived(
    forward: Callable[..., tuple[Any, Any]], backward: Callable[..., tuple[Any, ...]], static: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """The function whose value and residuals ``forward`` returns, with this backward pass, in reverse mode; in forward
    mode JAX raises TypeError. ``backward`` takes the ``static`` arguments, which are not arrays, the residuals and the
    cotangent, and returns the gradient by each other argument.
    """
    rule = jax.custom_vjp(lambda *arguments: forward(*arguments)[0], nondiff_argnums=static)
    rule.defvjp(forward, backward)
    return lambda *arguments: rule(*match_varying_axes(arguments))
