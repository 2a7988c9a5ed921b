"""Attention with its backward pass derived by hand, keeping the softmax matrix: the source's formulas term by term."""

import functools

import jax
import jax.numpy as jnp

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.ops.attention.scores import Part
from algorithms.ops.attention.tiles import for_each_tile, kernel
from algorithms.ops.softmax import softmax


def _forward_of_tile(Q, K, V, scores):
    block = scores.block(Part(0, K.shape[1]), Part(0, Q.shape[1]), Q.shape[1])
    S = block.masked(block.scaled(Q, K))
    A = softmax(S)
    V_tilde = jnp.matmul(V, (A * block.keep).astype(V.dtype), preferred_element_type=A.dtype)
    return V_tilde.astype(V.dtype), _log_sum_exp(S), A.astype(V.dtype)


def _log_sum_exp(S):
    """The log-sum-exp of each column; +∞ in a column with nothing to attend to."""
    empty = ~jnp.any(-jnp.inf < S, axis=0, keepdims=True)
    return jnp.where(empty, jnp.inf, jax.nn.logsumexp(jnp.where(empty, 0, S), axis=0, keepdims=True))


def _backward_of_tile(Q, K, V, A, E, scores):
    """With E = ∂F/∂Ṽ, A = softmax(S/√d_attn) and ⊗ the softmax Jacobian diag(a) − a aᵀ of every column::

        ∂F/∂V = E Aᵀ
        ∂F/∂A = Vᵀ E
        ∂F/∂S = A ⊗ (Vᵀ E) /√d_attn,   column by column  a ⊙ g − (aᵀ g) a
        ∂F/∂Q = K ∂F/∂S
        ∂F/∂K = Q (∂F/∂S)ᵀ

    Dropout, a cap, scores by distance and the mask are in `Block.backward`.

    Source: incml 2023, whose Q and K are the K and Q of the paper; Radu 2026, §12.4.6.
    """
    dtype, block = accumulation_dtype(Q.dtype), scores.block(Part(0, K.shape[1]), Part(0, Q.shape[1]), Q.shape[1])
    A, D = A.astype(dtype), block.keep
    product = functools.partial(jnp.matmul, preferred_element_type=dtype)
    dV = product(E, (A * D).T.astype(E.dtype))
    g = product(V.T, E) * D
    S = None if scores.cap is None else block.scaled(Q, K)
    dS = block.backward(S, A, g, (A * g).sum(axis=0, keepdims=True)) * Q.shape[0] ** -0.5
    dQ = product(K, dS.astype(K.dtype))
    dK = product(Q, dS.T.astype(Q.dtype))
    gradients = dQ, dK, dV, *block.by_distance_backward(dS)
    return tuple(d.astype(a.dtype) for d, a in zip(gradients, (Q, K, V, *scores.by_distance), strict=True))


dense_attention = kernel(for_each_tile, _forward_of_tile, _backward_of_tile, keeps_softmax=True)
