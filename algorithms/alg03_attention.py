"""Algorithms 3, 4 and 5: attention for a single query, for a sequence, and with several heads."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, Unpack

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.loops import for_each_head
from algorithms.machinery.arrays import AnyArray, accumulation_dtype
from algorithms.machinery.contract import algorithm, compiled
from algorithms.machinery.naming import numbered
from algorithms.masks import Mask
from algorithms.notation import Options, implementation_of
from algorithms.ops.attention.dispatch import attend
from algorithms.ops.linear import linear
from algorithms.ops.softmax import softmax
from algorithms.parameters import AttentionParams, MHAttentionParams, head_shapes


@algorithm(3, "Basic single-query attention")
def single_query_attention(
    e: Float[AnyArray, "d_in *batch"],
    E: Float[AnyArray, "d_in *batch T"],
    W_qkv: Annotated[AttentionParams, head_shapes("", d_x="d_in", d_z="d_in")],
) -> Float[Array, "d_out *batch"]:
    """Algorithm 3: ṽ ← the context tokens' values, weighted by how well their keys match the query.

    ``ṽ = Σ_t α_t v_t`` with ``α_t = exp(qᵀk_t/√d_attn) / Σ_u exp(qᵀk_u/√d_attn)``, for the current token e and the
    context tokens e_t, which are the columns of E.
    Departures: none.

    Example:
        >>> I, o = jnp.eye(2), jnp.zeros(2)
        >>> single_query_attention(o, jnp.array([[1.0, 3.0], [0.0, 2.0]]), AttentionParams(I, o, I, o, I, o)).tolist()
        [2.0, 1.0]
    """
    W_q, b_q, W_k, b_k, W_v, b_v = W_qkv
    q = linear(W_q, e, b_q, "paper")  # line 1
    k = linear(W_k, E, b_k, "paper")  # line 2
    v = linear(W_v, E, b_v, "paper")  # line 3
    scores = jnp.einsum("a...,a...t->t...", q, k, preferred_element_type=accumulation_dtype(q.dtype))
    alpha = softmax(scores / jnp.sqrt(q.shape[0]).astype(scores.dtype))  # line 4
    v_tilde = jnp.einsum("o...t,t...->o...", v.astype(alpha.dtype), alpha).astype(v.dtype)  # return
    return v_tilde


@algorithm(4, "Attention")
def attention(
    X: Float[AnyArray, "d_x *batch l_x"],
    Z: Float[AnyArray, "d_z *#batch l_z"],
    W_qkv: AttentionParams,
    mask: Mask,
    **options: Unpack[Options],
) -> Float[Array, "... l_x"]:
    """Algorithm 4: Ṽ ← Attention(X, Z | 𝓦_qkv, Mask). Each token of X attends to the tokens of Z that the mask permits.

    ``Ṽ = V · softmax(S/√d_attn)`` with ``S = KᵀQ``, and −∞ where the mask is False.
    Departures: a token with nothing to attend to outputs 0 (the formula is 0/0). Heads may share keys and values.

    Example:
        >>> I, o, Z = jnp.eye(1), jnp.zeros(1), jnp.array([[1.0, 3.0]])
        >>> attention(jnp.zeros((1, 1)), Z, AttentionParams(I, o, I, o, I, o), BIDIRECTIONAL).tolist()
        [[2.0]]
    """
    Q, K, V = projections(X, Z, W_qkv, functools.partial(linear, implementation=implementation_of(options)))
    V_tilde = attend(of_one_head, Q, K, V, mask, heads=Q.ndim > X.ndim, **options)  # lines 4-5, return
    return V_tilde


@numbered
def projections(X: Any, Z: Any, W_qkv: AttentionParams, product: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """Lines 1 to 3 of Algorithm 4, for one head or for all heads of stacked parameters.

    ``product(W, X, b)`` is W X + b 1ᵀ.
    """
    W_q, b_q, W_k, b_k, W_v, b_v = W_qkv
    Q = product(W_q, X, b_q)  # line 1
    K = product(W_k, Z, b_k)  # line 2
    V = product(W_v, Z, b_v)  # line 3
    return Q, K, V


@numbered
def of_one_head(Q: Array, K: Array, V: Array, Mask: Array, score: Any, softmax: Any, drop: Any) -> Array:
    """Lines 4 to the end of Algorithm 4, for one head of one sequence, which every kernel computes.

    The softmax may be replaced; ``score``, of S, and ``drop``, of the attention weights, are the identity in the paper.
    """
    S = jnp.matmul(K.T, Q, preferred_element_type=accumulation_dtype(Q.dtype))  # line 4
    S = jnp.where(Mask, score(S), -jnp.inf)  # line 5
    A = softmax(S / jnp.sqrt(Q.shape[0]).astype(S.dtype))  # return
    V_tilde = (V.astype(A.dtype) @ drop(A)).astype(V.dtype)  # return
    return V_tilde


@algorithm(5, "MHAttention")
def mh_attention(
    X: Float[AnyArray, "d_x *batch l_x"],
    Z: Float[AnyArray, "d_z *#batch l_z"],
    W: MHAttentionParams,
    mask: Mask,
    **options: Unpack[Options],
) -> Float[Array, "d_out *batch l_x"]:
    """Algorithm 5: Ṽ ← MHAttention(X, Z | 𝓦, Mask). H attention heads in parallel, whose outputs W_o combines.

    ``Ṽ = W_o [Y¹; …; Y^H] + b_o 1ᵀ`` with ``Y^h = Attention(X, Z | 𝓦_qkv^h, Mask)``, equation (4).
    Departures: a token with nothing to attend to outputs b_o (the formula is 0/0).

    Example:
        >>> I, o = jnp.ones((1, 1, 1)), jnp.zeros((1, 1))
        >>> W = MHAttentionParams(AttentionParams(I, o, I, o, I, o), W_o=jnp.full((1, 1), 10.0), b_o=jnp.ones(1))
        >>> mh_attention(jnp.zeros((1, 1)), jnp.array([[1.0, 3.0]]), W, BIDIRECTIONAL).tolist()
        [[21.0]]
    """

    def of_head(X, Z, W, mask):
        return attention(X, Z, W.heads, mask, **options)

    return of_heads(of_head, combine, X, Z, W, mask, implementation_of(options))


@numbered
def of_heads(
    attention: Callable[..., Any], write: Callable[..., Any], X: Any, Z: Any, W: Any, mask: Any, implementation: Any
) -> Float[Array, "d_out *columns"]:
    """Algorithm 5, with Algorithm 4 and the lines after the loop as a model has them."""

    @for_each_head(W)  # line 1
    def Y(W):
        Y = attention(X, Z, W, mask)  # line 2
        return Y

    return write(Y, W, implementation)


@numbered
def combine(Y: Float[Array, "H d_mid *columns"], W: Any, implementation: Any) -> Float[Array, "d_out *columns"]:
    """Lines 3 and 4 of Algorithm 5."""
    Y = jnp.concatenate(Y)  # line 3
    V_tilde = linear(W.W_o, Y, getattr(W, "b_o", None), implementation, name="W_oY")  # return
    return V_tilde


@compiled
def scaled_dot_product_attention(
    Q: Float[AnyArray, "d_attn *batch l_x"],
    K: Float[AnyArray, "d_attn *#batch l_z"],
    V: Float[AnyArray, "d_mid *#batch l_z"],
    mask: Mask,
    **options: Unpack[Options],
) -> Float[Array, "d_mid *batch l_x"]:
    """Lines 4 to the end of Algorithm 4: ``V · softmax(KᵀQ/√d_attn)``, with −∞ where the mask is False.

    Departures: a token with nothing to attend to outputs 0 (the formula is 0/0).

    Example:
        >>> Q, K, V = jnp.array([[0.0, 0.0]]), jnp.array([[1.0, 1.0]]), jnp.array([[1.0, 3.0]])
        >>> scaled_dot_product_attention(Q, K, V, UNIDIRECTIONAL).tolist()
        [[1.0, 2.0]]
    """
    return attend(of_one_head, Q, K, V, mask, heads=False, **options)
