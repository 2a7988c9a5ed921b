"""What the kernels with a backward pass derived by hand share: the function that they compute."""

from collections.abc import Callable
from typing import Any

from jax import Array
from jaxtyping import Float, UInt32

from algorithms.machinery.hand_derived import hand_derived
from algorithms.masks import Mask
from algorithms.ops.attention.tiles import ByDistance


def kernel(forward: Callable[..., tuple[Array, Any]], backward: Callable[..., tuple[Any, ...]]) -> Callable[..., Array]:
    """``V · softmax(KᵀQ/√d_attn)`` of every head and sequence, with −∞ where the mask is False, by these two passes.

    Source: Phuong and Hutter 2022, lines 4-5 of Algorithm 4.
    """

    def attention(
        Q: Float[Array, "H d_attn B l_x"],
        K: Float[Array, "H_kv d_attn B l_z"],
        V: Float[Array, "H_kv d_mid B l_z"],
        mask: Mask,
        seeds: UInt32[Array, "H B 2"] | None,
        dropout: float,
        cap: float | None,
        by_distance: ByDistance = (),
    ) -> Float[Array, "H d_mid B l_x"]:
        return forward(Q, K, V, mask, seeds, dropout, cap, by_distance)[0]

    return hand_derived(attention, forward, backward, static=(5, 6))
