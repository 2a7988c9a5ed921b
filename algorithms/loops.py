"""The paper's ``for`` and ``while``, written above their bodies, so that lines appear in the order of the pseudocode.

A body is a function from the state before an iteration to the state after it. Its name is bound to the final state::

    @for_each(3, 1)
    def x(i, x):
        return 2 * x

makes ``x`` the array 8.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def for_each(times: int, state: Any) -> Callable[[Callable[..., Any]], Any]:
    """``for i = 0, …, times − 1: state ← body(i, state)``. The loop is compiled once and is differentiable."""

    def run(body):
        last, _ = jax.lax.scan(lambda state, i: (body(i, state), None), state, jnp.arange(times))
        return last

    return run


def repeat_while(condition: Callable[..., Any], state: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Any]:
    """``while condition(*state): state ← body(*state)``."""

    def run(body):
        return jax.lax.while_loop(lambda state: condition(*state), lambda state: body(*state), state)

    return run
