"""Arrays of runs from before the parameters of layers that differ were stacks of their own.

A model with other MLPs in its first n layers (`Variant.first`) had these as ``first_mlp``, those of the other layers as
``layers.mlp``, and everything else stacked for all layers. Now its first layers are ``layers.0``, and the others
``layers.1``.
"""

import re
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import jax

_STACK = re.compile(r"(^|.*\.)layers\.([01])\.(.*)$")


class Rows(NamedTuple):
    """Where an array was: the name of that which had it, and its first row there."""

    name: str
    first: int = 0


def stored_as(leaves: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """Return the arrays, or their shapes, as they are stored under these names: as they are now, or as they were."""
    if all(name in names for name in leaves):
        return dict(leaves)
    found: dict[str, Any] = {}
    for name, leaf in leaves.items():
        was, first = _was(name, leaves)
        n = max(first + leaf.shape[0], found[was].shape[0] if was in found else 0) if was != name else 0
        found[was] = leaf if was == name else _with_rows(leaf, n)
    return found


def as_now(read: Mapping[str, Any], leaves: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays that were read as `stored_as` says by their names of now."""
    if stored.keys() == leaves.keys():
        return dict(read)
    found = {name: (_was(name, leaves), leaf) for name, leaf in leaves.items()}
    return {
        name: read[was] if was == name else _rows(read[was], first, leaf)
        for name, ((was, first), leaf) in found.items()
    }


def _was(name: str, leaves: Mapping[str, Any]) -> Rows:
    match = _STACK.match(name)
    if match is None:
        return Rows(name)
    before, stack, rest = match.groups()
    if rest.startswith("mlp."):
        return Rows(f"{before}{'layers.' if stack == '1' else 'first_'}{rest}")
    first = leaves[f"{before}layers.0.{rest}"].shape[0] if stack == "1" else 0
    return Rows(f"{before}layers.{rest}", first)


def _with_rows(leaf: Any, n: int) -> Any:
    return jax.ShapeDtypeStruct((n, *leaf.shape[1:]), leaf.dtype, sharding=getattr(leaf, "sharding", None))


def _rows(array: Any, first: int, leaf: Any) -> Any:
    rows = array[first : first + leaf.shape[0]]
    return rows if getattr(leaf, "sharding", None) is None else jax.device_put(rows, leaf.sharding)
