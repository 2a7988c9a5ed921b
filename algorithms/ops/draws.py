"""Draws that depend on their own key alone, not on other draws."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jaxtyping import Key


def by_own_key(draw: Callable[..., Any]) -> Callable[..., Any]:
    """``draw``, whose first argument is a key, such that under ``jax.vmap`` each key draws what it draws alone.

    Keys of JAX's default generator do. For one of XLA's (``impl="rbg"`` and ``"unsafe_rbg"``), all of a batch is drawn
    from the first key, so that there the draws of a batch are made one after another.
    """
    one_after_another = jax.custom_batching.sequential_vmap(draw)

    def drawn(key: Key[Array, ""], *arguments):
        is_default = jax.random.key_impl(key) == "threefry2x32"
        return (draw if is_default else one_after_another)(key, *arguments)

    return drawn
