"""Random draws that depend only on their own key, even under ``jax.vmap``."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jaxtyping import Key


def by_own_key(draw: Callable[..., Any]) -> Callable[..., Any]:
    """``draw``, whose first argument is a key, such that under ``jax.vmap`` each key draws the same values as alone.

    Keys of JAX's default generator already do. With XLA's generators (``impl="rbg"`` and ``"unsafe_rbg"``), a whole
    batch would be drawn from the first key, so its draws are made one after another.
    """
    one_after_another = jax.custom_batching.sequential_vmap(draw)

    def drawn(key: Key[Array, ""], *arguments):
        is_default = jax.random.key_impl(key) == "threefry2x32"
        return (draw if is_default else one_after_another)(key, *arguments)

    return drawn
