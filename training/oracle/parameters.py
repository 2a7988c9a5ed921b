"""Parameters as trees: unstacking them into lists, and listing and replacing their arrays.

A tree is an array, None, a list or tuple of trees, or an object with named attributes that are trees (a
NamedTuple or a SimpleNamespace). The attribute `variant` of such an object is not a tree, and is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from .components import Array

STACKED = ("layers", "encoder", "decoder")  # their arrays have a leading axis
OF_A_GROUP = ("W_k", "b_k", "W_v", "b_v")  # of heads: one for all heads that share keys and values
OF_ALL_HEADS = ("gamma_q", "gamma_k")
Places = Sequence[tuple[int, int]]
IsWhole = Callable[[int, str], bool]


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


def unstack(theta: Any, places: Mapping[str, Places] | None = None, is_whole: IsWhole = lambda l, name: False) -> Any:
    """Return parameters with lists of layers and heads from parameters that stack them on leading axes.

    The arrays under `layers`, `encoder` or `decoder` carry a leading axis for the layers, and those under `heads` one for
    the heads behind it; W_k, b_k, W_v and b_v may have fewer rows, one for each group of heads that share them, and
    gamma_q and gamma_k are of all heads. Result: A tree of SimpleNamespace objects with float64 arrays, in which those
    are lists; groups, if there are any, and gamma_q and gamma_k are beside the heads.

    `places`: where a name stands for several stacks, the stack of each layer and its row there; `is_whole`: whether a
    part of layer l, such as "attention", keeps its own types and the axes of its heads.

    Raises:
        ValueError: if the arrays of a stack disagree about its axis, or there is none.
    """
    named = fields(theta)
    if named is None:
        return None if theta is None else np.asarray(theta, dtype=np.float64)
    children: dict[str, Any] = {}
    for name, child in named.items():
        if name == "heads":
            children |= unstack_heads(child)
        elif name in STACKED:
            stacks = child if type(child) is tuple else (child,)
            at = (places or {}).get(name) or [(0, row) for row in range(rows_of(stacks[0]))]
            children[name] = [unstack_layer(row_of(stacks[of], row), l, is_whole) for l, (of, row) in enumerate(at)]
        else:
            children[name] = unstack(child)
    return SimpleNamespace(**children)


def unstack_layer(layer: Any, l: int, is_whole: IsWhole) -> Any:
    """Return a layer as `unstack` has it."""
    named = fields(layer) or {}
    return SimpleNamespace(**{name: W if is_whole(l, name) else unstack(W) for name, W in named.items()})


def unstack_heads(heads: Any) -> dict[str, Any]:
    """Return what `unstack` puts in place of `heads`."""
    named = fields(heads) or {}
    H = max(len(W) for name, W in named.items() if W is not None and name not in OF_ALL_HEADS)
    shared = {k for k in OF_A_GROUP if named.get(k) is not None and len(named[k]) < H}
    found = {k: unstack(named[k]) for k in OF_ALL_HEADS if k in named}
    for name, own in (("heads", set(named) - shared - set(OF_ALL_HEADS)), ("groups", shared)):
        part = SimpleNamespace(**{k: W for k, W in named.items() if k in own})
        found |= {name: [unstack(row_of(part, i)) for i in range(rows_of(part))]} if own else {}
    return found


def rows_of(theta: Any) -> int:
    """Return the length of the leading axis of all arrays of a tree."""
    lengths = {path: W.shape[:1] for path, W in flatten(theta).items()}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        raise ValueError(f"stacked arrays must have one and the same leading axis, but have {lengths}")
    return next(iter(lengths.values()))[0]


def row_of(theta: Any, i: int) -> Any:
    """Return row i of all arrays of a tree, as a tree of the same types."""
    named = fields(theta)
    if named is None:
        return None if theta is None else np.asarray(theta, dtype=np.float64)[i]
    rows = {name: row_of(child, i) for name, child in named.items()}
    return theta._replace(**rows) if hasattr(theta, "_replace") else SimpleNamespace(**rows)
