"""Backward passes derived by hand, registered with ``jax.custom_vjp``.

Inside ``jax.shard_map`` a value either varies between the devices or is the same on all of them. Where the inputs of a
rule differ in that, those that are the same are cast first, so that JAX sums their gradients over the devices.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")


def hand_derived(
    function: Callable[..., Any],
    forward: Callable[..., tuple[Any, Any]],
    backward: Callable[..., tuple[Any, ...]],
    static: tuple[int, ...] = (),
) -> Callable[..., Any]:
    """``function`` with this backward pass, in reverse mode; in forward mode JAX raises TypeError.

    Args:
        function: computes the value.
        forward: returns the value and the residuals.
        backward: takes the static arguments, the residuals and the cotangent; returns the gradient by each argument.
        static: positions of the arguments that are no arrays.
    """
    rule = jax.custom_vjp(function, nondiff_argnums=static)
    rule.defvjp(forward, backward)

    @functools.wraps(function)
    def differentiable(*arguments):
        return rule(*match_varying_axes(arguments))

    return differentiable


def match_varying_axes(tree: T) -> T:
    """The same arrays, all of them varying over the union of the manual mesh axes that one of them varies over."""
    axes = varies_over(tree)

    def cast(leaf):
        missing = axes - varies_over(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else None
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(cast, tree) if axes else tree


def varies_over(tree: Any) -> frozenset[str]:
    """The manual mesh axes that an array of the tree varies over; empty outside ``jax.shard_map``."""
    types = (jax.typeof(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return frozenset().union(*(_varying(t) for t in types))


def _varying(t: Any) -> frozenset[str]:
    return t.manual_axis_type.varying if hasattr(t, "manual_axis_type") else t.vma  # .vma before JAX 0.10.2
