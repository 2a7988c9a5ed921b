"""Attention of every head and sequence by rules for one tile that keep only each column's log-sum-exp: O(ℓ) memory."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, UInt32

from algorithms.machinery.hand_derived import hand_derived
from algorithms.masks import Mask
from algorithms.ops.attention.tiles import (
    ByDistance,
    Tiles,
    shared_by_sequences,
    sum_over_groups,
    sum_over_sequences,
)


class _Residuals(NamedTuple):
    Q: Float[Array, "H d_attn B l_x"]
    K: Float[Array, "H_kv d_attn B l_z"]
    V: Float[Array, "H_kv d_mid B l_z"]
    V_tilde: Float[Array, "H d_mid B l_x"]
    log_sum_exp: Float[Array, "H 1 B l_x"]
    mask: Mask
    seeds: UInt32[Array, "H B 2"] | None
    by_distance: ByDistance


def kernel(
    for_each_tile: Callable[..., Tiles], forward_of_tile: Callable[..., Any], backward_of_tile: Callable[..., Any]
) -> Callable[..., Array]:
    """``V · softmax(KᵀQ/√d_attn)`` of every head and sequence, with −∞ where the mask is False, by these two passes.

    Source: Phuong and Hutter 2022, lines 4-5 of Algorithm 4.
    """

    def forward(Q, K, V, mask, seeds, dropout, cap, by_distance):
        of_tile = functools.partial(forward_of_tile, dropout=dropout, cap=cap)
        V_tilde, log_sum_exp = for_each_tile(of_tile, (Q, K, V, *shared_by_sequences(by_distance)), mask, seeds)
        V_tilde, log_sum_exp = checkpoint_name(V_tilde, "V_tilde"), checkpoint_name(log_sum_exp, "log_sum_exp")
        return V_tilde, _Residuals(Q, K, V, V_tilde, log_sum_exp, mask, seeds, by_distance)

    def backward(dropout, cap, residuals: _Residuals, E):
        Q, K, V, V_tilde, log_sum_exp, mask, seeds, by_distance = residuals
        of_tile = functools.partial(backward_of_tile, dropout=dropout, cap=cap)
        matrices = Q, K, V, V_tilde, E, log_sum_exp, *shared_by_sequences(by_distance)
        dQ, dK, dV, *by_U_P = for_each_tile(of_tile, matrices, mask, seeds)
        return dQ, sum_over_groups(dK, len(K)), sum_over_groups(dV, len(V)), None, None, sum_over_sequences(by_U_P)

    return hand_derived(forward, backward, static=(5, 6))
