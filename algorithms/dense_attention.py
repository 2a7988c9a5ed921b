"""Attention with its backward pass derived by hand, keeping the softmax matrix: the source's formulas term by term."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, UInt32

from algorithms.checks import Axes, check_mask
from algorithms.dropout import kept
from algorithms.masks import BIDIRECTIONAL, Mask, StructuralMask
from algorithms.notation import accumulation_dtype
from algorithms.tiles import tilewise
from algorithms.unembedding import softmax

__all__ = ["AttentionLayerGradients", "attention_layer_backward", "dense_attention"]


class _Residuals(NamedTuple):
    Q: Float[Array, "H d_attn B l_x"]
    K: Float[Array, "H d_attn B l_z"]
    V: Float[Array, "H d_mid B l_z"]
    A: Float[Array, "H l_z B l_x"]
    mask: Mask
    seeds: UInt32[Array, "H B 2"] | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def dense_attention(
    Q: Float[Array, "H d_attn B l_x"],
    K: Float[Array, "H d_attn B l_z"],
    V: Float[Array, "H d_mid B l_z"],
    mask: Mask,
    seeds: UInt32[Array, "H B 2"] | None,
    dropout: float,
) -> Float[Array, "H d_mid B l_x"]:
    """``V · softmax(KᵀQ/√d_attn)`` of every head and sequence, with −∞ where the mask is False.

    Source: Phuong and Hutter 2022, lines 4-5 of Algorithm 4.
    """
    return _forward(Q, K, V, mask, seeds, dropout)[0]


def _forward(Q, K, V, mask, seeds, dropout):
    V_tilde, A = tilewise(functools.partial(_forward_of_tile, dropout=dropout))((Q, K, V), mask, seeds)
    return V_tilde, _Residuals(Q, K, V, A, mask, seeds)


def _forward_of_tile(matrices, mask, seed, dropout):
    Q, K, V = matrices
    Mask = mask.dense(K.shape[1], Q.shape[1]) if isinstance(mask, StructuralMask) else mask
    scale = Q.shape[0] ** -0.5
    S = jnp.matmul(K.T, Q, preferred_element_type=accumulation_dtype(Q.dtype)) * scale
    A = softmax(jnp.where(Mask, S, -jnp.inf))
    D = _kept(seed, dropout, A)
    V_tilde = jnp.matmul(V, (A * D).astype(V.dtype), preferred_element_type=A.dtype)
    return V_tilde.astype(V.dtype), A.astype(V.dtype)


def _kept(seed, dropout, A):
    """D: 0 where an attention weight is dropped, 1/(1 − rate) where it is kept."""
    if seed is None:
        return 1
    return jnp.where(kept(seed, dropout, *map(jnp.arange, A.shape)), jnp.asarray(1 / (1 - dropout), A.dtype), 0)


def _backward(dropout, residuals: _Residuals, E):
    Q, K, V, A, mask, seeds = residuals
    backward = tilewise(functools.partial(_backward_of_tile, dropout=dropout))
    dQ, dK, dV = backward((Q, K, V, A, E), mask, seeds)
    return dQ, dK, dV, None, None


def _backward_of_tile(matrices, mask, seed, dropout):
    """With E = ∂F/∂Ṽ, A = softmax(S/√d_attn) and ⊗ the softmax Jacobian diag(a) − a aᵀ of every column::

        ∂F/∂V = E Aᵀ
        ∂F/∂A = Vᵀ E
        ∂F/∂S = A ⊗ (Vᵀ E) /√d_attn,   column by column  a ⊙ g − (aᵀ g) a
        ∂F/∂Q = K ∂F/∂S
        ∂F/∂K = Q (∂F/∂S)ᵀ

    With dropout, D is 0 or 1/(1 − rate): A is A ⊙ D in the first line, and ∂F/∂A is D ⊙ (Vᵀ E). The mask needs no line,
    for A is 0 where it is False.

    Source: sources/000, whose Q and K are the K and Q of the paper; sources/003, §12.4.6.
    """
    Q, K, V, A, E = matrices
    dtype = accumulation_dtype(Q.dtype)
    A = A.astype(dtype)
    D = _kept(seed, dropout, A)
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    dV = product(E, (A * D).T.astype(E.dtype))
    g = product(V.T, E) * D
    dS = _softmax_jacobian(A, g) * Q.shape[0] ** -0.5
    dQ = product(K, dS.astype(K.dtype))
    dK = product(Q, dS.T.astype(Q.dtype))
    return dQ.astype(Q.dtype), dK.astype(K.dtype), dV.astype(V.dtype)


def _softmax_jacobian(A, g):
    """``𝒜 ⊗ g``: of every column, ``(diag(a) − a aᵀ) g = a ⊙ g − (aᵀ g) a``."""
    return A * (g - (A * g).sum(axis=0, keepdims=True))


dense_attention.defvjp(_forward, _backward)


class AttentionLayerGradients(NamedTuple):
    """What ``attention_layer_backward`` returns: the gradients by A, B, C and X."""

    A: Float[Array, "h d"]
    B: Float[Array, "h d"]
    C: Float[Array, "m d"]
    X: Float[Array, "d T"]


def attention_layer_backward(
    X: Float[Array, "d T"],
    A: Float[Array, "h d"],
    B: Float[Array, "h d"],
    C: Float[Array, "m d"],
    E: Float[Array, "m T"],
    mask: Mask = BIDIRECTIONAL,
) -> AttentionLayerGradients:
    """The full backward pass of one self-attention layer, in the matrix form of sources/000.

    Forward, Q = A X, K = B X, V = C X, 𝒜 = softmax(QᵀK/√h) over columns, Z = V 𝒜. (So A is the paper's W_k and B its
    W_q: the source sums over its queries.) Backward, with E = ∂F/∂Z and ⊗ the softmax Jacobian of every column::

        P = [ K (𝒜 ⊗ VᵀE)ᵀ/√h ;  Q (𝒜 ⊗ VᵀE)/√h ;  E 𝒜ᵀ ]
        [∂F/∂A; ∂F/∂B; ∂F/∂C] = P Xᵀ
        ∂F/∂X = [A; B; C]ᵀ P

    Args:
        X: input vectors, as columns.
        A: makes the source's queries.
        B: makes the source's keys.
        C: makes the values.
        E: gradient of the objective F by the output Z.
        mask: True where output t may depend on input i, ``[i, t]``.

    Returns:
        ∂F/∂A, ∂F/∂B, ∂F/∂C and ∂F/∂X.

    Raises:
        TypeError: for arrays that are not floating-point, or a mask that is not boolean.
        ValueError: for shapes that disagree.

    Source: sources/000, from "Let us now examine how to perform the backward pass" to the matrix P.
    """
    axes = Axes()
    for name, array, shape in (("X", X, "d T"), ("A", A, "h d"), ("B", B, "h d"), ("C", C, "m d"), ("E", E, "m T")):
        axes.check(name, array, shape)
    check_mask(mask, axes["T"], axes["T"])
    Mask = mask.dense(axes["T"], axes["T"]) if isinstance(mask, StructuralMask) else mask
    sqrt_h = jnp.sqrt(axes["h"]).astype(X.dtype)
    Q, K, V = A @ X, B @ X, C @ X
    weights = softmax(jnp.where(Mask, Q.T @ K / sqrt_h, -jnp.inf))
    dc = _softmax_jacobian(weights, V.T @ E)
    P = jnp.concatenate([K @ dc.T / sqrt_h, Q @ dc / sqrt_h, E @ weights.T])
    dABC = P @ X.T
    dX = jnp.concatenate([A, B, C]).T @ P
    h = axes["h"]
    return AttentionLayerGradients(dABC[:h], dABC[h : 2 * h], dABC[2 * h :], dX)
