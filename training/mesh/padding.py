"""Padding of the vocabulary, so that the mesh axis `model` divides it.

The padding is 0 and stays 0: no token reads it, and its logits are −∞. All tokens keep their IDs.
"""

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
    return _resized(theta, N_V, padded_size(N_V, multiple))


def unpadded(theta: Any, N_V: int, multiple: int) -> Any:
    """Return parameters without the zeros that `padded` added."""
    return _resized(theta, padded_size(N_V, multiple), N_V)


def _resized(theta: Any, before: int, after: int) -> Any:
    def of_leaf(path, leaf):
        axis = VOCABULARY_AXES.get(path[-1].name)
        if axis is None or leaf.shape[axis] != before:
            return leaf
        if after < before:
            return leaf[(..., slice(after), *[slice(None)] * (-1 - axis))]
        return jnp.pad(leaf, [(0, after - before if i == axis % leaf.ndim else 0) for i in range(leaf.ndim)])

    return theta if before == after else jax.tree_util.tree_map_with_path(of_leaf, theta)
