"""Parameters as trees: unstacking them into lists, and listing and replacing their arrays.

A tree is an array, None, a list or tuple of trees, or an object with named attributes that are trees (a
NamedTuple or a SimpleNamespace).
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from .components import Array

STACKED = ("layers", "encoder", "decoder", "heads")  # their arrays have a leading axis


def fields(tree: Any) -> dict[str, Any] | None:
    """Return the named attributes of a node.

    Args:
        tree: any tree.

    Returns:
        Attributes by name, in their order; None if the tree is no such node.
    """
    if hasattr(tree, "_asdict"):
        return tree._asdict()
    return vars(tree) if isinstance(tree, SimpleNamespace) else None


def flatten(theta: Any, path: str = "") -> dict[str, Array]:
    """Return all arrays of a tree by their paths, such as "layers[0].attention.heads[1].W_q".

    Args:
        theta: tree of parameters; None contributes nothing.
        path: path of theta itself.

    Returns:
        The arrays, in the order of the tree.
    """
    if theta is None:
        return {}
    named = fields(theta)
    if named is not None:
        children = {f"{path}.{name}" if path else name: child for name, child in named.items()}
    elif isinstance(theta, (list, tuple)):
        children = {f"{path}[{i}]": child for i, child in enumerate(theta)}
    else:
        return {path: np.asarray(theta)}
    return {name: W for p, child in children.items() for name, W in flatten(child, p).items()}


def rebuild(theta: Any, arrays: Mapping[str, Array], path: str = "") -> Any:
    """Return a tree of theta's structure with other arrays; the inverse of `flatten`.

    Args:
        theta: tree of parameters.
        arrays: new arrays by the paths that `flatten` gives.
        path: path of theta itself.

    Returns:
        A tree of SimpleNamespace objects and lists.
    """
    if theta is None:
        return None
    named = fields(theta)
    if named is not None:
        children = {k: rebuild(child, arrays, f"{path}.{k}" if path else k) for k, child in named.items()}
        return SimpleNamespace(**children)
    if isinstance(theta, (list, tuple)):
        return [rebuild(child, arrays, f"{path}[{i}]") for i, child in enumerate(theta)]
    return arrays[path]


def unstack(theta: Any) -> Any:
    """Return parameters with lists of heads and layers from parameters that stack them on leading axes.

    Args:
        theta: tree in which the arrays under `heads` carry a leading axis for the heads, and those under
            `layers`, `encoder` or `decoder` one more, in front, for the layers.

    Returns:
        A tree of SimpleNamespace objects with float64 arrays, in which those fields are lists.
    """
    named = fields(theta)
    if named is None:
        return None if theta is None else np.asarray(theta, dtype=np.float64)
    children = {k: unstack_axis(child) if k in STACKED else unstack(child) for k, child in named.items()}
    return SimpleNamespace(**children)


def unstack_axis(theta: Any) -> list[Any]:
    """Return the slices of a tree along the leading axis of all its arrays.

    Args:
        theta: tree whose arrays have the same leading axis.

    Returns:
        As many unstacked trees as the axis is long.

    Raises:
        ValueError: if the arrays disagree about the axis, or there is none.
    """
    arrays = flatten(theta)
    lengths = {path: W.shape[:1] for path, W in arrays.items()}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        raise ValueError(f"stacked arrays must have one and the same leading axis, but have {lengths}")
    (length,) = next(iter(lengths.values()))
    return [unstack(rebuild(theta, {path: W[i] for path, W in arrays.items()})) for i in range(length)]
