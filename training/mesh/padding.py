"""Padding of the vocabulary, so that the mesh axis `model` divides it.

The padding is 0 and stays 0: no token reads it, and its logits are −∞. All tokens keep their IDs.
"""

from typing import Any

import jax
import jax.numpy as jnp

from algorithms.model.theta import declared


def padded_size(N_V: int, multiple: int) -> int:
    """Return N_V rounded up to a multiple."""
    return -(-N_V // multiple) * multiple


def padded(theta: Any, N_V: int, multiple: int) -> Any:
    """Return parameters with zeros after those of the last token; a separate context vocabulary is not padded."""
    return _resized(theta, N_V, padded_size(N_V, multiple))


def unpadded(theta: Any, N_V: int, multiple: int) -> Any:
    """Return parameters without the zeros that `padded` added."""
    return _resized(theta, padded_size(N_V, multiple), N_V)


def _resized(theta: Any, before: int, after: int) -> Any:
    if before == after:
        return theta
    shapes = declared(theta)

    def of_leaf(path, leaf):
        of_tokens = [axis == "N_V" for axis in shapes[path].axes.split()]
        if not any(of_tokens):
            return leaf
        if after < before:
            return leaf[tuple(slice(after if is_one else None) for is_one in of_tokens)]
        return jnp.pad(leaf, [(0, after - before if is_one else 0) for is_one in of_tokens])

    return jax.tree_util.tree_map_with_path(of_leaf, theta)
