"""Which arrays vary between the devices inside ``jax.shard_map``, and which are the same on all of them.

Where the inputs of a derivative rule or of a loop differ in that, those that are the same are cast first, so that JAX
sums their gradients over the devices.
"""

from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")


def match_varying_axes(tree: T) -> T:
    """The same arrays, all of them varying over the union of the manual mesh axes that one of them varies over."""
    axes = varies_over(tree)

    def cast(leaf):
        missing = axes - varies_over(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else None
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(cast, tree) if axes else tree


def varies_over(tree: Any) -> frozenset[str]:
    """The manual mesh axes that an array of the tree varies over; empty outside ``jax.shard_map``."""
    types = (jax.typeof(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return frozenset().union(*(_varying(t) for t in types))


def _varying(t: Any) -> frozenset[str]:
    return t.manual_axis_type.varying if hasattr(t, "manual_axis_type") else t.vma  # .vma before JAX 0.10.2
