"""Attention with its backward pass derived by hand, keeping the softmax matrix: the source's formulas term by term."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, UInt32

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.hand_derived import hand_derived
from algorithms.masks import Mask, StructuralMask
from algorithms.ops.attention.tiles import for_each_tile, sum_over_groups
from algorithms.ops.dropout import keep_mask
from algorithms.ops.softmax import capped, capped_derivative, softmax, softmax_backward


class _Residuals(NamedTuple):
    Q: Float[Array, "H d_attn B l_x"]
    K: Float[Array, "H_kv d_attn B l_z"]
    V: Float[Array, "H_kv d_mid B l_z"]
    A: Float[Array, "H l_z B l_x"]
    mask: Mask
    seeds: UInt32[Array, "H B 2"] | None


def _forward(Q, K, V, mask, seeds, dropout, cap):
    of_tile = functools.partial(_forward_of_tile, dropout=dropout, cap=cap)
    V_tilde, A = for_each_tile(of_tile, (Q, K, V), mask, seeds)
    return V_tilde, _Residuals(Q, K, V, A, mask, seeds)


def _forward_of_tile(matrices, mask, seed, dropout, cap):
    Q, K, V = matrices
    Mask = mask.dense(K.shape[1], Q.shape[1]) if isinstance(mask, StructuralMask) else mask
    scale = Q.shape[0] ** -0.5
    S = jnp.matmul(K.T, Q, preferred_element_type=accumulation_dtype(Q.dtype)) * scale
    A = softmax(jnp.where(Mask, capped(S, cap), -jnp.inf))
    D = _kept(seed, dropout, A)
    V_tilde = jnp.matmul(V, (A * D).astype(V.dtype), preferred_element_type=A.dtype)
    return V_tilde.astype(V.dtype), A.astype(V.dtype)


def _kept(seed, dropout, A):
    """D: 0 where an attention weight is dropped, 1/(1 − rate) where it is kept."""
    if seed is None:
        return 1
    return jnp.where(keep_mask(seed, dropout, *map(jnp.arange, A.shape)), jnp.asarray(1 / (1 - dropout), A.dtype), 0)


def _backward(dropout, cap, residuals: _Residuals, E):
    Q, K, V, A, mask, seeds = residuals
    of_tile = functools.partial(_backward_of_tile, dropout=dropout, cap=cap)
    dQ, dK, dV = for_each_tile(of_tile, (Q, K, V, A, E), mask, seeds)
    return dQ, sum_over_groups(dK, len(K)), sum_over_groups(dV, len(V)), None, None


def _backward_of_tile(matrices, mask, seed, dropout, cap):
    """With E = ∂F/∂Ṽ, A = softmax(S/√d_attn) and ⊗ the softmax Jacobian diag(a) − a aᵀ of every column::

        ∂F/∂V = E Aᵀ
        ∂F/∂A = Vᵀ E
        ∂F/∂S = A ⊗ (Vᵀ E) /√d_attn,   column by column  a ⊙ g − (aᵀ g) a
        ∂F/∂Q = K ∂F/∂S
        ∂F/∂K = Q (∂F/∂S)ᵀ

    With a cap c, S/√d_attn is C = c tanh(S/(c √d_attn)), and ∂F/∂S = (1 − C²/c²) ⊙ ∂F/∂C /√d_attn.

    With dropout, D is 0 or 1/(1 − rate): A is A ⊙ D in the first line, and ∂F/∂A is D ⊙ (Vᵀ E). The mask needs no line,
    for A is 0 where it is False.

    Source: incml 2023, whose Q and K are the K and Q of the paper; Radu 2026, §12.4.6.
    """
    Q, K, V, A, E = matrices
    dtype = accumulation_dtype(Q.dtype)
    A = A.astype(dtype)
    D = _kept(seed, dropout, A)
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    dV = product(E, (A * D).T.astype(E.dtype))
    g = product(V.T, E) * D
    scale = Q.shape[0] ** -0.5
    dS = softmax_backward(A, g) * scale
    if cap is not None:
        dS = dS * capped_derivative(product(K.T, Q) * scale, cap)
    dQ = product(K, dS.astype(K.dtype))
    dK = product(Q, dS.T.astype(Q.dtype))
    return dQ.astype(Q.dtype), dK.astype(K.dtype), dV.astype(V.dtype)


def _dense_attention(
    Q: Float[Array, "H d_attn B l_x"],
    K: Float[Array, "H_kv d_attn B l_z"],
    V: Float[Array, "H_kv d_mid B l_z"],
    mask: Mask,
    seeds: UInt32[Array, "H B 2"] | None,
    dropout: float,
    cap: float | None,
) -> Float[Array, "H d_mid B l_x"]:
    """``V · softmax(KᵀQ/√d_attn)`` of every head and sequence, with −∞ where the mask is False.

    Source: Phuong and Hutter 2022, lines 4-5 of Algorithm 4.
    """
    return _forward(Q, K, V, mask, seeds, dropout, cap)[0]


dense_attention = hand_derived(_dense_attention, _forward, _backward, static=(5, 6))
