"""Algorithms 3, 4 and 5: attention for a single query, for a sequence, and with several heads."""

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import AnyArray, accumulation_dtype
from algorithms.machinery.contract import REGISTRY, algorithm, compiled
from algorithms.machinery.naming import inner
from algorithms.masks import Mask
from algorithms.notation import Dropout, Implementation, OptionalKey
from algorithms.ops.attention.dispatch import attend, for_every_head
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
    scores = jnp.einsum("a...,a...t->t...", q, k) / jnp.sqrt(q.shape[0]).astype(q.dtype)
    alpha = softmax(scores)  # line 4
    v_tilde = jnp.einsum("o...t,t...->o...", v, alpha)  # return
    return v_tilde


@algorithm(4, "Attention")
def attention(
    X: Float[AnyArray, "d_x *batch l_x"],
    Z: Float[AnyArray, "d_z *#batch l_z"],
    W_qkv: AttentionParams,
    mask: Mask,
    *,
    implementation: Implementation = "auto",
    dropout: Dropout = 0.0,
    key: OptionalKey = None,
) -> Float[Array, "... l_x"]:
    """Algorithm 4: Ṽ ← Attention(X, Z | 𝓦_qkv, Mask). Each token of X attends to the tokens of Z that the mask permits.

    ``Ṽ = V · softmax(S/√d_attn)`` with ``S = KᵀQ``, and −∞ where the mask is False.

    Departures: a token with nothing to attend to outputs 0 (the formula is 0/0). Heads may share keys and values.

    Example:
        >>> from algorithms import BIDIRECTIONAL
        >>> I, o = jnp.eye(1), jnp.zeros(1)
        >>> W_qkv = AttentionParams(I, o, I, o, I, o)
        >>> attention(jnp.zeros((1, 1)), jnp.array([[1.0, 3.0]]), W_qkv, BIDIRECTIONAL).tolist()
        [[2.0]]
    """
    W_q, b_q, W_k, b_k, W_v, b_v = W_qkv
    Q = linear(W_q, X, b_q, implementation)  # line 1
    K = linear(W_k, Z, b_k, implementation)  # line 2
    V = linear(W_v, Z, b_v, implementation)  # line 3

    @for_every_head(X, Q, K, V, mask, implementation, dropout, key)  # lines 4-5, return
    def V_tilde(Q, K, V, Mask, score, softmax, drop):
        S = jnp.matmul(K.T, Q, preferred_element_type=accumulation_dtype(Q.dtype))  # line 4
        S = jnp.where(Mask, score(S), -jnp.inf)  # line 5
        A = softmax(S / jnp.sqrt(Q.shape[0]).astype(S.dtype))  # return
        V_tilde = (V.astype(A.dtype) @ drop(A)).astype(V.dtype)  # return
        return V_tilde

    return V_tilde


@algorithm(5, "MHAttention")
def mh_attention(
    X: Float[AnyArray, "d_x *batch l_x"],
    Z: Float[AnyArray, "d_z *#batch l_z"],
    W: MHAttentionParams,
    mask: Mask,
    *,
    implementation: Implementation = "auto",
    dropout: Dropout = 0.0,
    key: OptionalKey = None,
) -> Float[Array, "d_out *batch l_x"]:
    """Algorithm 5: Ṽ ← MHAttention(X, Z | 𝓦, Mask). H attention heads in parallel, whose outputs W_o combines.

    ``Ṽ = W_o [Y¹; …; Y^H] + b_o 1ᵀ`` with ``Y^h = Attention(X, Z | 𝓦_qkv^h, Mask)``, equation (4).

    Departures: a token with nothing to attend to outputs b_o (the formula is 0/0).

    Example:
        >>> from algorithms import BIDIRECTIONAL
        >>> I, o = jnp.ones((1, 1, 1)), jnp.zeros((1, 1))
        >>> W = MHAttentionParams(AttentionParams(I, o, I, o, I, o), W_o=jnp.full((1, 1), 10.0), b_o=jnp.ones(1))
        >>> mh_attention(jnp.zeros((1, 1)), jnp.array([[1.0, 3.0]]), W, BIDIRECTIONAL).tolist()
        [[21.0]]
    """
    Y = attention(X, Z, W.heads, mask, implementation=implementation, dropout=dropout, key=key)  # lines 1-2
    Y = jnp.concatenate(Y)  # line 3
    V_tilde = linear(W.W_o, Y, W.b_o, implementation, name="W_oY")  # return
    return V_tilde


@compiled
def scaled_dot_product_attention(
    Q: Float[AnyArray, "d_attn *batch l_x"],
    K: Float[AnyArray, "d_attn *#batch l_z"],
    V: Float[AnyArray, "d_mid *#batch l_z"],
    mask: Mask,
    *,
    implementation: Implementation = "auto",
    dropout: Dropout = 0.0,
    key: OptionalKey = None,
) -> Float[Array, "d_mid *batch l_x"]:
    """Lines 4 to the end of Algorithm 4: ``V · softmax(KᵀQ/√d_attn)``, with −∞ where the mask is False.

    Departures: a token with nothing to attend to outputs 0 (the formula is 0/0).

    Example:
        >>> from algorithms import UNIDIRECTIONAL
        >>> Q, K, V = jnp.array([[0.0, 0.0]]), jnp.array([[1.0, 1.0]]), jnp.array([[1.0, 3.0]])
        >>> scaled_dot_product_attention(Q, K, V, UNIDIRECTIONAL).tolist()
        [[1.0, 2.0]]
    """
    options = {"implementation": implementation, "dropout": dropout, "key": key}
    return attend(of_one_head(), Q, K, V, mask, heads=False, **options)


def of_one_head() -> Callable[..., Array]:
    """The function inside Algorithm 4: lines 4 to the end for one head of one sequence, which every kernel computes.

    It takes Q, K, V, the mask as an array, the softmax or what replaces it, and two functions that are the identity in
    the paper: ``score`` of S, for variants, and ``drop`` of the attention weights.
    """
    return inner(REGISTRY[4].function, "V_tilde")
