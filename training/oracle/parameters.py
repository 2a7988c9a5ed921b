"""Parameters as trees: unstacking them into lists, and listing and replacing their arrays.

A tree is an array, None, a list or tuple of trees, or an object with named attributes that are trees (a
NamedTuple or a SimpleNamespace). The attribute `variant` of such an object is not a tree, and is left out.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from .components import Array

STACKED = ("layers", "encoder", "decoder")  # their arrays have a leading axis
OF_A_GROUP = ("W_k", "b_k", "W_v", "b_v")  # of heads: one for all heads that share keys and values
OF_ALL_HEADS = ("gamma_q", "gamma_k")


def fields(tree: Any) -> dict[str, Any] | None:
    """Return the named attributes of a node in their order, but for the variant; None if it is another kind of tree."""
    if hasattr(tree, "_asdict"):
        return {name: child for name, child in tree._asdict().items() if name != "variant"}
    return vars(tree) if isinstance(tree, SimpleNamespace) else None


def flatten(theta: Any, path: str = "") -> dict[str, Array]:
    """Return all arrays of a tree by their paths, such as "layers[0].attention.heads[1].W_q", in the order of the tree.

    None contributes nothing; `path`: path of theta itself.
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
    """Return a tree of theta's structure, of SimpleNamespace objects and lists, with the arrays of `flatten`."""
    if theta is None:
        return None
    named = fields(theta)
    if named is not None:
        children = {k: rebuild(child, arrays, f"{path}.{k}" if path else k) for k, child in named.items()}
        return SimpleNamespace(**children)
    if isinstance(theta, (list, tuple)):
        return [rebuild(child, arrays, f"{path}[{i}]") for i, child in enumerate(theta)]
    return arrays[path]


def heads_as_list(heads: Any) -> dict[str, Any]:
    """Return what `unstack` puts in place of `heads`."""
    return {"heads": unstack_axis(heads)}


def unstack(theta: Any, of_heads: Callable[[Any], dict[str, Any]] = heads_as_list) -> Any:
    """Return parameters with lists of heads and layers from parameters that stack them on leading axes.

    The arrays under `heads` carry a leading axis for the heads, and those under `layers`, `encoder` or `decoder` one
    more, in front, for the layers. Result: A tree of SimpleNamespace objects with float64 arrays, in which those are
    lists.
    """
    named = fields(theta)
    if named is None:
        return None if theta is None else np.asarray(theta, dtype=np.float64)
    children: dict[str, Any] = {}
    for name, child in named.items():
        stacked = unstack_axis if name in STACKED else unstack
        children |= of_heads(child) if name == "heads" else {name: stacked(child, of_heads)}
    return SimpleNamespace(**children)


def unstack_axis(theta: Any, of_heads: Callable[[Any], dict[str, Any]] = heads_as_list) -> list[Any]:
    """Return the slices of a tree along the leading axis of all its arrays, as unstacked trees.

    Raises:
        ValueError: if the arrays disagree about the axis, or there is none.
    """
    arrays = flatten(theta)
    lengths = {path: W.shape[:1] for path, W in arrays.items()}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        raise ValueError(f"stacked arrays must have one and the same leading axis, but have {lengths}")
    (length,) = next(iter(lengths.values()))
    return [unstack(rebuild(theta, {path: W[i] for path, W in arrays.items()}), of_heads) for i in range(length)]


def unstack_family(theta: Any) -> Any:
    """Return parameters with lists of layers, heads and groups from parameters that stack them on leading axes.

    Of the arrays under `heads`, W_k, b_k, W_v and b_v are [H_kv, ...], gamma_q and gamma_k have no such axis, and all
    others, whether in `heads` or in `heads.relative`, are [H, ...]. Result: As of `unstack`; what belongs to a group of
    heads is in `groups`, beside `heads`, and gamma_q and gamma_k are beside them, too.
    """
    return unstack(theta, unstack_heads)


def unstack_heads(heads: Any) -> dict[str, Any]:
    """Return what `unstack_family` puts in place of `heads`: "heads", "groups", "gamma_q" and "gamma_k"."""
    named = dict(fields(heads) or {})
    named.update(fields(named.pop("relative", None)) or {})
    mine = {k: W for k, W in named.items() if k not in OF_A_GROUP + OF_ALL_HEADS}
    shared = {k: named.get(k) for k in OF_A_GROUP}
    norms = {k: unstack(named.get(k)) for k in OF_ALL_HEADS}
    return {"heads": unstack_axis(SimpleNamespace(**mine)), "groups": unstack_axis(SimpleNamespace(**shared)), **norms}
