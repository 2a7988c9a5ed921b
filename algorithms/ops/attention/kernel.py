"""Attention of every head and sequence, forward and backward, by two hand-derived rules for one tile."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, UInt32

from algorithms.machinery.hand_derived import hand_derived
from algorithms.masks import Mask
from algorithms.ops.attention.tiles import ByDistance, Tiles, grouped


class _Residuals(NamedTuple):
    Q: Float[Array, "H d_attn B l_x"]
    K: Float[Array, "H_kv d_attn B l_z"]
    V: Float[Array, "H_kv d_mid B l_z"]
    V_tilde: Float[Array, "H d_mid B l_x"] | None  # None if the rules keep A
    softmax: Float[Array, "H _ B l_x"]  # A, or the log-sum-exp of each column, which gives A again
    mask: Mask
    seeds: UInt32[Array, "H B 2"] | None
    by_distance: ByDistance


def kernel(
    for_each_tile: Callable[..., Tiles],
    forward_of_tile: Callable[..., Any],
    backward_of_tile: Callable[..., Any],
    *,
    keeps_softmax: bool = False,
) -> Callable[..., Array]:
    """``V · softmax(KᵀQ/√d_attn)`` of every head and sequence, with −∞ where the mask is False, by these two passes.

    Args:
        for_each_tile: applies a rule to every tile.
        forward_of_tile: (Q, K, V) → Ṽ and the log-sum-exp of each column, or Ṽ and A.
        backward_of_tile: (Q, K, V, Ṽ, E, log-sum-exp), or (Q, K, V, A, E) → ∂F/∂Q, ∂F/∂K and ∂F/∂V, for E = ∂F/∂Ṽ.
            If distances add to the scores, both rules also take U and P, and this one also returns ∂F/∂U and ∂F/∂P.
        keeps_softmax: whether the rules keep A, in O(ℓ²) memory, and not the log-sum-exp, in O(ℓ).

    Source: Phuong and Hutter 2022, lines 4-5 of Algorithm 4.
    """

    def forward(Q, K, V, mask, seeds, dropout, cap, by_distance):
        of_tile = functools.partial(forward_of_tile, dropout=dropout, cap=cap)
        V_tilde, softmax = for_each_tile(of_tile, (Q, K, V, *_as_tiles(by_distance)), mask, seeds)
        if keeps_softmax:
            return V_tilde, _Residuals(Q, K, V, None, softmax, mask, seeds, by_distance)
        V_tilde, log_sum_exp = checkpoint_name(V_tilde, "V_tilde"), checkpoint_name(softmax, "log_sum_exp")
        return V_tilde, _Residuals(Q, K, V, V_tilde, log_sum_exp, mask, seeds, by_distance)

    def backward(dropout, cap, residuals: _Residuals, E):
        Q, K, V, V_tilde, softmax, mask, seeds, by_distance = residuals
        of_tile = functools.partial(backward_of_tile, dropout=dropout, cap=cap)
        kept = (softmax, E) if keeps_softmax else (V_tilde, E, softmax)
        dQ, dK, dV, *dU_dP = for_each_tile(of_tile, (Q, K, V, *kept, *_as_tiles(by_distance)), mask, seeds)
        dK, dV = _sum_over_groups(dK, len(K)), _sum_over_groups(dV, len(V))
        by_U_P = (dU_dP[0], dU_dP[1].sum(axis=2)) if dU_dP else ()  # all sequences share P
        return dQ, dK, dV, None, None, by_U_P

    return hand_derived(forward, backward, static=(5, 6))


def _as_tiles(by_distance: ByDistance) -> Tiles:
    """U and P with an axis of sequences; that of P has size 1, since all sequences share it."""
    return (by_distance[0], by_distance[1][:, :, None]) if by_distance else ()


def _sum_over_groups(dK: Float[Array, "H *axes"], H_kv: int) -> Float[Array, "H_kv *axes"]:
    """The gradient of keys or values that heads share: ``∂F/∂K_g = Σ_{h in group g} ∂F/∂K_h``."""
    return dK if len(dK) == H_kv else grouped(dK, H_kv).sum(axis=1)
