"""Ambient options of a call, which apply to all functions that it calls, so that none passes them on.

Public functions take them as keywords (`algorithms.notation.Options`). The static ones are in a JAX user context, which
is part of every cache key. A key may be traced, so it is only in the Python context; it is read where a line draws.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax


class Static(NamedTuple):
    """The options without arrays, with their defaults; `algorithms.notation` explains them."""

    implementation: str = "auto"
    dropout: float = 0.0
    remat: bool | str = False
    unroll: bool = False


_static = jax.make_user_context(default_value=Static())
_key: contextvars.ContextVar[Any] = contextvars.ContextVar("_key", default=None)
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("_inside", default=False)


@contextlib.contextmanager
def using(**options: Any) -> Iterator[None]:
    """A context with these options, in which public functions run as plain functions, without checks or compilation.

    Options: ``implementation``, ``dropout``, ``key``, ``remat`` and ``unroll``; those left out stay as they are.
    """
    tokens = [(_inside, _inside.set(True))]
    if "key" in options:
        tokens.append((_key, _key.set(options.pop("key"))))
    try:
        with _static(_static.value._replace(**options)):
            yield
    finally:
        for variable, token in tokens:
            variable.reset(token)


def is_inside() -> bool:
    """Whether the body of a public function is running."""
    return _inside.get()


def static() -> Static:
    """The options without arrays."""
    return _static.value


def dropout_key() -> Any:
    """The key, or keys, of the dropout; None: nothing is dropped."""
    return _key.get()


def as_printed() -> bool:
    """Whether the lines run as printed, and JAX derives their backward passes."""
    return _static.value.implementation == "paper"


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
