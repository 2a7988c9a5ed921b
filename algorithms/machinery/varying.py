"""Whether an array varies between the devices inside ``jax.shard_map`` or is the same on all of them.

If the inputs of a derivative rule or of a loop differ in this, the invariant ones are cast to varying first, so that
JAX sums their gradients over the devices.
"""

from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")


def match_varying_axes(tree: T) -> T:
    """The same arrays, each cast to vary over every manual mesh axis that any of them varies over."""
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    axes = varies_over(tree)
    return jax.tree.map(lambda leaf: cast_to_vary(leaf, axes), tree) if axes else tree


def cast_to_vary(leaf: Any, axes: frozenset[str]) -> Any:
    """An array, cast to vary over these manual mesh axes, too; anything else as it is."""
    missing = axes - varies_over(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else None
    return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf


def varies_over(tree: Any) -> frozenset[str]:
    """The manual mesh axes over which some array of the tree varies; empty outside ``jax.shard_map``."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return frozenset().union(*(_varying(jax.typeof(array)) for array in arrays))


def _varying(aval: Any) -> frozenset[str]:
    return aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma  # before JAX 0.10
