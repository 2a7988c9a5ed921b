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
    axes = varies_over(tree)

    def cast(leaf):
        missing = axes - varies_over(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else None
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(cast, tree) if axes else tree


def varies_over(tree: Any) -> frozenset[str]:
    """The manual mesh axes over which some array of the tree varies; empty outside ``jax.shard_map``."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return frozenset().union(*(jax.typeof(array).manual_axis_type.varying for array in arrays))
