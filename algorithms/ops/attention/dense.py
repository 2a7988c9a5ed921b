"""Attention with its backward pass derived by hand, keeping the softmax matrix: the source's formulas term by term."""

import functools

import jax
import jax.numpy as jnp

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.masks import StructuralMask
from algorithms.ops.attention.distances import scaled_scores, scores_by_distance_backward
from algorithms.ops.attention.tiles import for_each_tile, kernel
from algorithms.ops.dropout import keep_mask
from algorithms.ops.softmax import capped, capped_derivative, softmax, softmax_backward


def _forward_of_tile(matrices, mask, seed, dropout, cap):
    Q, K, V, *by_distance = matrices
    Mask = mask.dense(K.shape[1], Q.shape[1]) if isinstance(mask, StructuralMask) else mask
    S = jnp.where(Mask, capped(scaled_scores(Q, K, by_distance), cap), -jnp.inf)
    A = softmax(S)
    D = _kept(seed, dropout, A)
    V_tilde = jnp.matmul(V, (A * D).astype(V.dtype), preferred_element_type=A.dtype)
    return V_tilde.astype(V.dtype), _log_sum_exp(S), A.astype(V.dtype)


def _log_sum_exp(S):
    """That of each column; +∞ in one with nothing to attend to."""
    empty = ~jnp.any(-jnp.inf < S, axis=0, keepdims=True)
    return jnp.where(empty, jnp.inf, jax.nn.logsumexp(jnp.where(empty, 0, S), axis=0, keepdims=True))


def _kept(seed, dropout, A):
    """D: 0 where an attention weight is dropped, 1/(1 − rate) where it is kept."""
    if seed is None:
        return 1
    return jnp.where(keep_mask(seed, dropout, *map(jnp.arange, A.shape)), jnp.asarray(1 / (1 - dropout), A.dtype), 0)


def _backward_of_tile(matrices, mask, seed, dropout, cap):
    """With E = ∂F/∂Ṽ, A = softmax(S/√d_attn) and ⊗ the softmax Jacobian diag(a) − a aᵀ of every column::

        ∂F/∂V = E Aᵀ
        ∂F/∂A = Vᵀ E
        ∂F/∂S = A ⊗ (Vᵀ E) /√d_attn,   column by column  a ⊙ g − (aᵀ g) a
        ∂F/∂Q = K ∂F/∂S
        ∂F/∂K = Q (∂F/∂S)ᵀ

    With a cap c, C = c tanh(S/(c √d_attn)) replaces S/√d_attn, and ∂F/∂S = (1 − C²/c²) ⊙ ∂F/∂C /√d_attn. Scores by
    distance are part of S; their rule is ``scores_by_distance_backward``.

    With dropout, D is 0 or 1/(1 − rate): the first line has A ⊙ D in place of A, and ∂F/∂A = D ⊙ (Vᵀ E). The mask needs
    no term, since A is 0 where it is False.

    Source: incml 2023, whose Q and K are the K and Q of the paper; Radu 2026, §12.4.6.
    """
    Q, K, V, A, E, *by_distance = matrices
    dtype = accumulation_dtype(Q.dtype)
    A = A.astype(dtype)
    D = _kept(seed, dropout, A)
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    dV = product(E, (A * D).T.astype(E.dtype))
    g = product(V.T, E) * D
    dS = softmax_backward(A, g) * Q.shape[0] ** -0.5
    if cap is not None:
        dS = dS * capped_derivative(scaled_scores(Q, K, by_distance), cap)
    dQ = product(K, dS.astype(K.dtype))
    dK = product(Q, dS.T.astype(Q.dtype))
    by_matrices = dQ.astype(Q.dtype), dK.astype(K.dtype), dV.astype(V.dtype)
    if not by_distance:
        return by_matrices
    dU, dP = scores_by_distance_backward(*by_distance, dS=dS)
    return *by_matrices, dU.astype(by_distance[0].dtype), dP.astype(by_distance[1].dtype)


dense_attention = kernel(for_each_tile, _forward_of_tile, _backward_of_tile, keeps_softmax=True)
