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

from algorithms.machinery.devices import cast_to_vary, varies_over


def for_each(times: int, state: Any) -> Callable[[Callable[..., Any]], Any]:
    """``for i = 0, …, times − 1: state ← body(i, state)``. The loop is compiled once and is differentiable."""

    def run(body):
        def turn(state, i):
            return body(i, state), None

        last, _ = jax.lax.scan(turn, _varying(lambda state: body(jnp.asarray(0), state), state), jnp.arange(times))
        return last

    return run


def repeat_while(condition: Callable[..., Any], state: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Any]:
    """``while condition(*state): state ← body(*state)``. The name is bound to the first variable of the state."""

    def run(body):
        def turn(state):
            return body(*state)

        return jax.lax.while_loop(lambda state: condition(*state), turn, _varying(turn, state))[0]

    return run


def _varying(turn: Callable[..., Any], state: Any) -> Any:
    """The state; inside ``jax.shard_map``, each of its arrays varies between devices if the one after a turn does."""
    for _ in jax.tree.leaves(state) if jax.sharding.get_abstract_mesh().manual_axes else ():
        before = jax.tree.map(varies_over, state)
        after = jax.make_jaxpr(turn)(state).out_avals
        after = jax.tree.unflatten(jax.tree.structure(state), [a.manual_axis_type.varying for a in after])
        wider = jax.tree.map(lambda a, b: a | b, before, after)
        if wider == before:
            break
        state = jax.tree.map(cast_to_vary, state, wider)
    return state
