"""Backward passes derived by hand, registered with ``jax.custom_vjp``."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

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
    values, tree = jax.tree.flatten(value)
    leaves, of_arguments = jax.tree.flatten(arguments)

    def flat(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(f(*of_arguments.unflatten(leaves)))

    return tree.unflatten(derived_p.bind(*values, *leaves, f=flat, n=len(values)))


derived_p = Primitive("derived")
"""``derived(*values, *arguments)``: the values, with the derivatives of ``f(*arguments)``.

JAX drops the rule of ``jax.custom_jvp`` when it linearizes a ``jax.lax.scan``.
"""


def _jvp(primals: Any, tangents: Any, *, f: Callable[..., Any], n: int) -> tuple[Any, Any]:
    values = derived_p.bind(*primals, f=f, n=n)
    _, found = jax.jvp(f, (*primals[n:],), tuple(map(ad.instantiate_zeros, tangents[n:])))
    return values, [tangent.astype(value.dtype) for tangent, value in zip(found, values, strict=True)]


def _batched(arguments: Any, axes: Any, *, f: Callable[..., Any], n: int) -> tuple[Any, Any]:
    size = next(a.shape[axis] for a, axis in zip(arguments, axes, strict=True) if axis is not None)
    first = [a if axis is None else jnp.moveaxis(a, axis, 0) for a, axis in zip(arguments, axes, strict=True)]
    values = [jnp.broadcast_to(a, (size, *a.shape)) if axes[i] is None else a for i, a in enumerate(first[:n])]
    of_each = jax.vmap(f, in_axes=tuple(None if axis is None else 0 for axis in axes[n:]), axis_size=size)
    return derived_p.bind(*values, *first[n:], f=of_each, n=n), [0] * n


derived_p.multiple_results = True
derived_p.def_impl(lambda *arguments, f, n: list(arguments[:n]))
derived_p.def_abstract_eval(lambda *arguments, f, n: list(arguments[:n]))
mlir.register_lowering(derived_p, lambda _, *arguments, f, n: list(arguments[:n]))
ad.primitive_jvps[derived_p] = _jvp
batching.primitive_batchers[derived_p] = _batched
