"""Ambient options of a call, which apply to all functions that it calls, and the hand-derived backward passes.

Public functions take them as keywords (`algorithms.notation.Options`). The static ones are in a JAX user context, which
is part of every cache key. A key may be traced, so it is only in the Python context; it is read where a line draws.
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax

from algorithms.machinery.devices import match_varying_axes


class Static(NamedTuple):
    """The options without arrays, with their defaults; `algorithms.notation` explains them."""

    implementation: str = "auto"
    dropout: float = 0.0
    remat: bool | str = False
    unroll: bool = False


static: Any = jax.make_user_context(default_value=Static())
"""The options without arrays: ``static.value`` is a `Static`."""

dropout_key: contextvars.ContextVar[Any] = contextvars.ContextVar("dropout_key", default=None)
"""The key, or keys, of the dropout; None: nothing is dropped."""

inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)
"""Whether the body of a public function is running."""


@contextlib.contextmanager
def using(**options: Any) -> Iterator[None]:
    """A context with these options, in which public functions run as plain functions, without checks or compilation.

    Options: ``implementation``, ``dropout``, ``key``, ``remat`` and ``unroll``; those left out stay as they are.
    """
    tokens = [(inside, inside.set(True))]
    if "key" in options:
        tokens.append((dropout_key, dropout_key.set(options.pop("key"))))
    try:
        with static(static.value._replace(**options)):
            yield
    finally:
        for variable, token in tokens:
            variable.reset(token)


def as_printed() -> bool:
    """Whether the lines run as printed, and JAX derives their backward passes."""
    return static.value.implementation == "paper"


def outside_trace(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function, cached, and run on concrete values, as printed, outside of the current trace and mesh."""

    @functools.lru_cache(maxsize=256)
    @functools.wraps(f)
    def run(*arguments):
        with contextlib.ExitStack() as stack:
            stack.enter_context(jax.ensure_compile_time_eval())
            stack.enter_context(jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())))
            stack.enter_context(using(implementation="paper", dropout=0.0, key=None))
            return f(*arguments)

    return run


def shapes_of_leaves(tree: Any) -> tuple[Any, tuple[tuple[int, ...], ...]]:
    """The structure of a pytree, and the shapes of its arrays: hashable."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(tuple(leaf.shape) for leaf in leaves)


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class HandDerived:
    """The function that ``forward`` computes, with a rule for reverse mode; JAX refuses forward mode."""

    forward: Callable[..., tuple[Any, Any]]  # returns the value and the residuals
    backward: Callable[..., tuple[Any, ...]]  # static arguments, residuals, cotangent → gradients of all others
    value: Callable[..., Any] | None  # the lines as printed; None: only the rule computes it
    rule: Callable[..., Any]  # forward and backward pass, as one function

    def __call__(self, *arguments: Any) -> Any:  # noqa: D102
        if self.value is not None and as_printed():
            return self.value(*arguments)
        return self.rule(*match_varying_axes(arguments))


def hand_derived(
    forward: Callable[..., tuple[Any, Any]] | None,
    backward: Callable[..., tuple[Any, ...]],
    static: tuple[int, ...] = (),
    value: Callable[..., Any] | None = None,
) -> HandDerived:
    """Register a forward pass and its backward pass.

    Args:
        forward: returns the value and the residuals; None: that of ``value``, and the arguments that are not static.
        backward: accepts the static arguments, the residuals and the cotangent; returns the gradient of each argument
            that is not static.
        static: the positions of the arguments that are not arrays.
        value: computes the value alone, by the lines as printed, which take the place of the rule under
            ``implementation="paper"``. With it, ``forward`` may call the result of this function, whose rule then also
            applies when its gradient is differentiated; None: the value is that of ``forward``.
    """

    def keeping_arguments(*arguments):
        return of_arguments(*arguments), [a for i, a in enumerate(arguments) if i not in static]

    both = forward or keeping_arguments
    of_arguments = value or (lambda *arguments: both(*arguments)[0])
    rule = jax.custom_vjp(of_arguments, nondiff_argnums=static)
    rule.defvjp(both, backward)
    return HandDerived(both, backward, value, rule)


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
