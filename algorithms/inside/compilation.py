"""One compiled program for each function and structure of its arguments, as ``jax.jit(f)`` has.

``jax.jit`` by itself would compile at every call of `record`, which makes a new function each time.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from algorithms.machinery.devices import explicit_mesh, with_auto_axes

F = TypeVar("F", bound=Callable[..., Any])


class Call(NamedTuple):
    """A call's arguments without their arrays: hashable, with weak references to functions."""

    tree: Any  # the structure of the arguments
    leaves: tuple[Any, ...]  # their leaves, with `_ARRAY` in the place of each array, and references to functions
    types: tuple[type, ...]  # the types of the leaves, since True == 1 == 1.0

    @classmethod
    def of(cls, *args: Any, **kwargs: Any) -> tuple["Call", list[Any]]:
        """The call, and the arrays."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if _is_array(leaf)]
        leaves = tuple(_ARRAY if _is_array(leaf) else _reference(leaf) for leaf in leaves)
        return cls(tree, leaves, tuple(map(type, leaves))), arrays

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with these arrays in their places."""
        rest = iter(arrays)
        leaves = [next(rest) if leaf is _ARRAY else leaf for leaf in self.leaves]
        return jax.tree.unflatten(self.tree, [leaf() if isinstance(leaf, _Reference) else leaf for leaf in leaves])


_ARRAY = "an array"


class _Reference(weakref.ref):
    """A weak reference to a function; equal functions have equal references."""


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _reference(leaf: Any) -> Any:
    try:
        return _Reference(leaf) if callable(leaf) else leaf
    except TypeError:  # a class without weak references
        return leaf


_PROGRAMS: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""A function → its compiled programs, for as long as it lives."""


def compiled_for_each_function(run: F) -> F:
    """``run(f, *args, **kwargs)``, compiled once for each f, structure and shapes; everything but arrays is static.

    f may be a pytree, such as what `intervene` returns, whose arrays are arguments of the program.
    """

    @functools.wraps(run)
    def compiled(*args, **kwargs):
        call, arrays = Call.of(*args, **kwargs)
        owner = next(filter(callable, jax.tree.leaves(args[:1])), type(args[0]))
        try:
            programs = _PROGRAMS.setdefault(owner, {})
        except TypeError:  # no hash, or no weak references
            programs = {}
        if run not in programs:
            programs[run] = jax.jit(functools.partial(_called, run), static_argnums=0)
        return programs[run](call, arrays)

    return compiled  # pyright: ignore[reportReturnType]


def _called(run: Callable[..., Any], call: Call, arrays: Sequence[Any]) -> Any:
    """The result, replicated if the mesh has Explicit axes."""

    def of_arrays(arrays):
        args, kwargs = call.arguments(arrays)
        return run(*args, **kwargs)

    mesh = explicit_mesh(arrays)
    return of_arrays(arrays) if mesh is None else with_auto_axes(of_arrays, arrays, mesh, PartitionSpec())
