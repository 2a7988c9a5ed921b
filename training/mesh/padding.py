"""Padding of the vocabulary, so that the mesh axis `model` divides it.

The padding is 0 and stays 0: no token reads it, and its logits are −∞. All tokens keep their IDs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

VOCABULARY_AXES = {"W_e": -1, "W_u": -2, "b_u": -1}  # parameter → its axis with an entry for each token


def padded_size(N_V: int, multiple: int) -> int:
    """Return N_V rounded up to a multiple.

    Example:
        >>> padded_size(50257, 128)
        50304
    """
    return -(-N_V // multiple) * multiple


def padded(theta: Any, N_V: int, multiple: int) -> Any:
    """Return parameters with zeros after those of the last token; a separate context vocabulary is not padded."""
    more = padded_size(N_V, multiple) - N_V

    def of_leaf(array, axis):
        widths = [(0, more if i == axis % array.ndim else 0) for i in range(array.ndim)]
        return jnp.pad(array, widths)

    return _map_vocabulary(theta, N_V, of_leaf) if more else theta


def unpadded(theta: Any, N_V: int, multiple: int) -> Any:
    """Return parameters without the zeros that `padded` added."""
    size = padded_size(N_V, multiple)

    def of_leaf(array, axis):
        return array[(..., slice(N_V), *[slice(None)] * (-1 - axis))]

    return _map_vocabulary(theta, size, of_leaf) if size > N_V else theta


def _map_vocabulary(theta: Any, size: int, function: Callable[[Any, int], Any]) -> Any:
    def of_leaf(path, leaf):
        axis = VOCABULARY_AXES.get(path[-1].name)
        return leaf if axis is None or leaf.shape[axis] != size else function(leaf, axis)

    return jax.tree_util.tree_map_with_path(of_leaf, theta)
