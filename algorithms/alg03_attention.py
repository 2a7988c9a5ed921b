"""Algorithms 3, 4 and 5: attention for a single query, for a sequence, and with several heads."""

import math
from typing import Annotated, Any, Unpack

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import AnyArray, accumulation_dtype
from algorithms.machinery.contract import algorithm, compiled
from algorithms.masks import Mask
from algorithms.notation import Options
from algorithms.ops.activation import softmax
from algorithms.ops.attention.dispatch import scores
from algorithms.ops.linear import linear
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
    q = linear(W_q, e, b_q)  # line 1
    k = linear(W_k, E, b_k)  # line 2
    v = linear(W_v, E, b_v)  # line 3
    s = jnp.einsum("a...,a...t->t...", q, k, preferred_element_type=accumulation_dtype(q.dtype))
    alpha = softmax(s / jnp.sqrt(q.shape[0]).astype(s.dtype))  # line 4
    v_tilde = jnp.einsum("o...t,t...->o...", v.astype(alpha.dtype), alpha).astype(v.dtype)  # return
    return v_tilde


class Steps:
    """A variant's operations between the lines of Algorithm 4; the paper has none."""

    __internal__ = True

    def read(self, Q: Any, K: Any, V: Any) -> tuple[Any, Any, Any]:
        """What line 4 and the return read, from the results of lines 1 to 3."""
        return Q, K, V

    scores: Any = staticmethod(scores)
    """The scores of line 4; ``heads``: of several heads, whose axis comes first."""

    def result(self, V_tilde: Any) -> Any:
        """What Algorithm 4 returns, from its last line."""
        return V_tilde


PRINTED = Steps()


@algorithm(4, "Attention")
def attention(
    X: Float[AnyArray, "d_x *batch l_x"],
    Z: Float[AnyArray, "d_z *#batch l_z"],
    W_qkv: AttentionParams,
    mask: Mask,
    *,
    f: Steps = PRINTED,
    **options: Unpack[Options],
) -> Float[Array, "... l_x"]:
    """Algorithm 4: Ṽ ← Attention(X, Z | 𝓦_qkv, Mask). Each token of X attends to the tokens of Z that the mask permits.

    ``Ṽ = V · softmax(S/√d_attn)`` with ``S = KᵀQ``, and −∞ where the mask is False. S waits for its product with V,
    for which the implementation is chosen.
    Departures: a token with nothing to attend to outputs 0 (the formula is 0/0). Heads may share keys and values.

    Example:
        >>> I, o, Z = jnp.eye(1), jnp.zeros(1), jnp.array([[1.0, 3.0]])
        >>> attention(jnp.zeros((1, 1)), Z, AttentionParams(I, o, I, o, I, o), BIDIRECTIONAL).tolist()
        [[2.0]]
    """
    W_q, b_q, W_k, b_k, W_v, b_v = W_qkv
    Q = linear(W_q, X, b_q)  # line 1
    K = linear(W_k, Z, b_k)  # line 2
    V = linear(W_v, Z, b_v)  # line 3
    Q, K, V = f.read(Q, K, V)
    S = f.scores(K, Q, heads=W_q.ndim > 2)  # line 4
    S = S.where(mask)  # line 5
    A = softmax(S / math.sqrt(S.d_attn))  # return
    V_tilde = V @ A  # return
    return f.result(V_tilde)


@algorithm(5, "MHAttention")
def mh_attention(
    X: Float[AnyArray, "d_x *batch l_x"],
    Z: Float[AnyArray, "d_z *#batch l_z"],
    W: MHAttentionParams,
    mask: Mask,
    *,
    f: Steps = PRINTED,
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
    Y = attention(X, Z, W.heads, mask, f=f)  # lines 1-2: all heads at once
    Y = jnp.concatenate(Y)  # line 3
    V_tilde = linear(W.W_o, Y, W.b_o, name="W_oY")  # return
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
    return V @ softmax(scores(K, Q).where(mask) / math.sqrt(len(Q)))
