"""Support for Explicit mesh axes: a function runs with all of them as Auto, and its results are typed again.

With Explicit axes JAX requires a sharding for the result of every product and lookup. Inside an algorithm, shardings
follow from the names of the mesh axes, as they do for Auto axes (`algorithms.machinery.sharding`).
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import Array
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P


def with_automatic_axes(
    function: Callable[..., Any], signature: inspect.Signature, axes: Mapping[str, str], args: Any, kwargs: Any
) -> Any:
    """``function(*args, **kwargs)``, with every Explicit mesh axis turned into Auto inside the function.

    The results' types shard sequences and tokens as the arguments do, and nothing else. ``axes`` are those of the
    arguments that may be arrays.
    """
    leaves = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, Array)]
    meshes = [jax.typeof(leaf).sharding.mesh for leaf in leaves]
    mesh = next((mesh for mesh in meshes if mesh.explicit_axes), None)
    if mesh is None:
        return function(*args, **kwargs)
    types = dict.fromkeys(mesh.explicit_axes, AxisType.Auto)
    places = _places(axes, signature.bind(*args, **kwargs).arguments)
    with jax.sharding.use_abstract_mesh(mesh.update_axis_types(types)):
        args, kwargs = jax.tree.map(_untyped, (args, kwargs))
        results = function(*args, **kwargs)
    annotations = typing.get_args(signature.return_annotation) or (signature.return_annotation,)
    if not isinstance(results, tuple) or hasattr(results, "_fields"):
        return _typed(results, annotations[0], places, mesh)
    return tuple(_typed(result, a, places, mesh) for result, a in zip(results, annotations, strict=True))


def _untyped(leaf: Any) -> Any:
    return jax.sharding.reshard(leaf, P(*[None] * leaf.ndim)) if isinstance(leaf, Array) else leaf


def _typed(result: Any, annotation: Any, places: dict[str, Any], mesh: Any) -> Any:
    """A result with its sharding in the mesh; parameters are replicated."""

    def typed(leaf):
        names = _names(annotation.dim_str, leaf.ndim) if hasattr(annotation, "dim_str") else [""] * leaf.ndim
        return jax.sharding.reshard(leaf, jax.sharding.NamedSharding(mesh, P(*map(places.get, names))))

    return jax.tree.map(typed, result)


def _places(axes: Mapping[str, str], arguments: dict[str, Any]) -> dict[str, Any]:
    """Name of an axis of sequences or tokens → the mesh axes that shard it, in the first argument where some do."""
    places: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in axes and isinstance(value, Array):
            for axis, place in zip(_names(axes[name], value.ndim), jax.typeof(value).sharding.spec, strict=True):
                if place is not None and axis.startswith(("*batch", "l")) and place not in places.values():
                    places.setdefault(axis, place)
    return places


def _names(axes: str, ndim: int) -> list[str]:
    """The names of an array's axes; batch axes are numbered from the last one."""
    words = axes.replace("#", "").replace("...", "*batch").split()
    at = next((i for i, word in enumerate(words) if word.startswith("*")), len(words))
    n = ndim - len(words) + 1
    return [*words[:at], *(f"*batch {i}" for i in range(n - 1, -1, -1)), *words[at + 1 :]] if at < len(words) else words
