"""Backward passes derived by hand, registered with ``jax.custom_vjp``."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from algorithms.machinery.sharding import match_varying_axes

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class HandDerived:
    """The function that ``forward`` computes, with a rule for reverse mode; JAX refuses forward mode."""

    forward: Callable[..., tuple[Any, Any]]  # returns the value and the residuals
    backward: Callable[..., tuple[Any, ...]]  # static arguments, residuals, cotangent → gradients of all others
    rule: Callable[..., Any]  # both, as one function

    def __call__(self, *arguments: Any) -> Any:  # noqa: D102
        return self.rule(*match_varying_axes(arguments))


def hand_derived(
    forward: Callable[..., tuple[Any, Any]],
    backward: Callable[..., tuple[Any, ...]],
    static: tuple[int, ...] = (),
    value: Callable[..., Any] | None = None,
) -> HandDerived:
    """Register a forward pass and its backward pass.

    Args:
        forward: returns the value and the residuals.
        backward: accepts the static arguments, the residuals and the cotangent; returns the gradient of each argument
            that is not static.
        static: the positions of the arguments that are not arrays.
        value: computes the value alone. With it, ``forward`` may call the result of this function, whose rule then also
            applies when its gradient is differentiated; None: the value is that of ``forward``.
    """
    rule = jax.custom_vjp(value or (lambda *arguments: forward(*arguments)[0]), nondiff_argnums=static)
    rule.defvjp(forward, backward)
    return HandDerived(forward, backward, rule)


def with_derivative_of(f: Callable[..., T], value: T, *arguments: Any) -> T:
    """``value``, which is ``f(*arguments)`` computed in another way, with the derivative of f, of every order.

    Example:
        >>> jax.grad(lambda x: with_derivative_of(jnp.sin, jnp.float32(0.5), x))(0.0).item()
        1.0
    """
    from algorithms.machinery.primitives import derived_p

    values, tree = jax.tree.flatten(value)
    leaves, of_arguments = jax.tree.flatten(arguments)

    def flat(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(f(*of_arguments.unflatten(leaves)))

    return tree.unflatten(derived_p.bind(*values, *leaves, f=flat, n=len(values)))
