"""Algorithms 3, 4 and 5: attention of one query, of a sequence, and with several heads."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from algorithms.batching import columns, of_mask, tokens
from algorithms.checks import Axes, check_dropout, check_implementation, check_key, check_mask
from algorithms.linear import linear
from algorithms.masks import Mask
from algorithms.parameters import AttentionParams, MHAttentionParams
from algorithms.registry import algorithm, compiled, lines
from algorithms.scores import IMPLEMENTATIONS, attend
from algorithms.unembedding import softmax

__all__ = ["attention", "mh_attention", "scaled_dot_product_attention", "single_query_attention"]


def _check_single_query_attention(e, E, W_qkv) -> None:
    axes = Axes()
    axes.check("e", e, "d_in")
    axes.check("E", E, "d_in T")
    axes.alias(d_x="d_in", d_z="d_in")
    axes.check_params("W_qkv", W_qkv, AttentionParams)


@algorithm(3, "Basic single-query attention", check=_check_single_query_attention)
def single_query_attention(
    e: Float[Array, "d_in"], E: Float[Array, "d_in T"], W_qkv: AttentionParams
) -> Float[Array, "d_out"]:
    """Algorithm 3: ṽ ← the values of the context tokens, weighted by how well their keys match the query.

    ``ṽ = Σ_t α_t v_t`` with ``α_t = exp(qᵀk_t/√d_attn) / Σ_u exp(qᵀk_u/√d_attn)``.

    Args:
        e: the current token.
        E: the context tokens e_t, as columns.
        W_qkv: query, key and value projections of one head.

    Returns:
        ṽ, the current token's representation with the context mixed in.

    Raises:
        TypeError: for arrays that are not floating-point, or parameters of another kind.
        ValueError: for shapes that disagree.

    Departures: none.

    Example:
        >>> import jax.numpy as jnp
        >>> from algorithms import AttentionParams
        >>> I, o = jnp.eye(2), jnp.zeros(2)
        >>> single_query_attention(o, jnp.array([[1.0, 3.0], [0.0, 2.0]]), AttentionParams(I, o, I, o, I, o)).tolist()
        [2.0, 1.0]

    Source: Phuong and Hutter 2022, Algorithm 3.
    """
    W_q, b_q, W_k, b_k, W_v, b_v = W_qkv
    q = linear(W_q, e, b_q, "paper")  # line 1
    k = linear(W_k, E, b_k, "paper")  # line 2
    v = linear(W_v, E, b_v, "paper")  # line 3
    alpha = softmax(q @ k / jnp.sqrt(q.shape[0]).astype(q.dtype))  # line 4
    v_tilde = v @ alpha  # return
    return v_tilde


def _check_attention(X, Z, W_qkv, mask, *, implementation="auto", dropout=0.0, key=None) -> None:
    axes = Axes()
    axes.check("X", X, "d_x l_x")
    axes.check("Z", Z, "d_z l_z")
    axes.check_params("W_qkv", W_qkv, AttentionParams)
    check_mask(mask, Z.shape[1], X.shape[1])
    check_implementation(implementation, IMPLEMENTATIONS)
    check_dropout(dropout)
    check_key(key)


@algorithm(
    4,
    "Attention",
    check=_check_attention,
    static=("implementation", "dropout"),
    sequences={"X": columns, "Z": columns, "mask": of_mask, "key": tokens},
)
def attention(
    X: Float[Array, "d_x *batch l_x"],
    Z: Float[Array, "d_z *batch l_z"],
    W_qkv: AttentionParams,
    mask: Mask,
    *,
    implementation: str = "auto",
    dropout: float = 0.0,
    key: Key[Array, "*batch"] | None = None,
) -> Float[Array, "... l_x"]:
    """Algorithm 4: Ṽ ← Attention(X, Z | 𝓦_qkv, Mask). Every token of X attends the tokens of Z that the mask permits.

    ``Ṽ = V · softmax(S/√d_attn)`` with ``S = KᵀQ``, and −∞ where the mask is False.

    Args:
        X: the primary sequence, tokens as columns.
        Z: the context sequence; X itself for self-attention.
        W_qkv: query, key and value projections of one head.
        mask: True where token t_x may attend context token t_z: a structural mask, or a boolean array ``[l_z, l_x]``.
        implementation: how the softmax and its backward pass are computed; see ``IMPLEMENTATIONS``.
        dropout: probability to drop an attention weight, where a key is given.
        key: randomness of the dropout, consumed.

    Returns:
        Ṽ, the tokens of X with the context mixed in.

    Raises:
        TypeError: for arrays that are not floating-point, a mask that is not boolean, or an untyped key.
        ValueError: for shapes that disagree, or an implementation that does not exist or can not serve.

    Departures: a token that may attend nothing gets 0 (the formula is 0/0).

    Example:
        >>> import jax.numpy as jnp
        >>> from algorithms import BIDIRECTIONAL, AttentionParams
        >>> I, o = jnp.eye(1), jnp.zeros(1)
        >>> W_qkv = AttentionParams(I, o, I, o, I, o)
        >>> attention(jnp.zeros((1, 1)), jnp.array([[1.0, 3.0]]), W_qkv, BIDIRECTIONAL).tolist()
        [[2.0]]

    Source: Phuong and Hutter 2022, Algorithm 4.
    """
    W_q, b_q, W_k, b_k, W_v, b_v = W_qkv
    Q = linear(W_q, X, b_q, implementation)  # line 1
    K = linear(W_k, Z, b_k, implementation)  # line 2
    V = linear(W_v, Z, b_v, implementation)  # line 3
    V_tilde = attend(Q, K, V, mask, X.ndim - 2, implementation, dropout, key)  # lines 4-5, return
    return V_tilde


def _check_mh_attention(X, Z, W, mask, *, implementation="auto", dropout=0.0, key=None) -> None:
    axes = Axes()
    axes.check("X", X, "d_x l_x")
    axes.check("Z", Z, "d_z l_z")
    axes.check_params("W", W, MHAttentionParams)
    check_mask(mask, Z.shape[1], X.shape[1])
    check_implementation(implementation, IMPLEMENTATIONS)
    check_dropout(dropout)
    check_key(key)


@algorithm(
    5,
    "MHAttention",
    check=_check_mh_attention,
    static=("implementation", "dropout"),
    sequences={"X": columns, "Z": columns, "mask": of_mask, "key": tokens},
)
def mh_attention(
    X: Float[Array, "d_x *batch l_x"],
    Z: Float[Array, "d_z *batch l_z"],
    W: MHAttentionParams,
    mask: Mask,
    *,
    implementation: str = "auto",
    dropout: float = 0.0,
    key: Key[Array, "*batch"] | None = None,
) -> Float[Array, "d_out *batch l_x"]:
    """Algorithm 5: Ṽ ← MHAttention(X, Z | 𝓦, Mask). H attentions side by side, their outputs mixed by W_o.

    ``Ṽ = W_o [Y¹; …; Y^H] + b_o 1ᵀ`` with ``Y^h = Attention(X, Z | 𝓦_qkv^h, Mask)``.

    Args:
        X: the primary sequence, tokens as columns.
        Z: the context sequence; X itself for self-attention.
        W: the heads, stacked on axis 0, and the output projection.
        mask: True where token t_x may attend context token t_z: a structural mask, or a boolean array ``[l_z, l_x]``.
        implementation: how the softmax and its backward pass are computed; see ``IMPLEMENTATIONS``.
        dropout: probability to drop an attention weight, where a key is given.
        key: randomness of the dropout, consumed.

    Returns:
        Ṽ, the tokens of X with the context mixed in.

    Raises:
        TypeError: for arrays that are not floating-point, a mask that is not boolean, or an untyped key.
        ValueError: for shapes that disagree, or an implementation that does not exist or can not serve.

    Departures: a token that may attend nothing gets b_o (the formula is 0/0).

    Example:
        >>> import jax.numpy as jnp
        >>> from algorithms import BIDIRECTIONAL, AttentionParams, MHAttentionParams
        >>> I, o = jnp.ones((1, 1, 1)), jnp.zeros((1, 1))
        >>> W = MHAttentionParams(AttentionParams(I, o, I, o, I, o), W_o=jnp.full((1, 1), 10.0), b_o=jnp.ones(1))
        >>> mh_attention(jnp.zeros((1, 1)), jnp.array([[1.0, 3.0]]), W, BIDIRECTIONAL).tolist()
        [[21.0]]

    Source: Phuong and Hutter 2022, Algorithm 5 and equation (4).
    """
    Y = lines(attention)(X, Z, W.heads, mask, implementation=implementation, dropout=dropout, key=key)  # lines 1-2
    Y = Y.reshape(-1, *Y.shape[2:])  # line 3
    V_tilde = linear(W.W_o, Y, W.b_o, implementation)  # return
    return V_tilde


def _check_scaled_dot_product_attention(Q, K, V, mask, *, implementation="auto", dropout=0.0, key=None) -> None:
    axes = Axes()
    axes.check("Q", Q, "d_attn l_x")
    axes.check("K", K, "d_attn l_z")
    axes.check("V", V, "d_mid l_z")
    check_mask(mask, K.shape[1], Q.shape[1])
    check_implementation(implementation, IMPLEMENTATIONS)
    check_dropout(dropout)
    check_key(key)


@compiled(check=_check_scaled_dot_product_attention, static=("implementation", "dropout"))
def scaled_dot_product_attention(
    Q: Float[Array, "d_attn l_x"],
    K: Float[Array, "d_attn l_z"],
    V: Float[Array, "d_mid l_z"],
    mask: Mask,
    *,
    implementation: str = "auto",
    dropout: float = 0.0,
    key: Key[Array, ""] | None = None,
) -> Float[Array, "d_mid l_x"]:
    """Lines 4 to the end of Algorithm 4: ``V · softmax(KᵀQ/√d_attn)``, with −∞ where the mask is False.

    Args:
        Q: the queries, as columns.
        K: the keys.
        V: the values.
        mask: True where token t_x may attend context token t_z: a structural mask, or a boolean array ``[l_z, l_x]``.
        implementation: how the softmax and its backward pass are computed; see ``IMPLEMENTATIONS``.
        dropout: probability to drop an attention weight, where a key is given.
        key: randomness of the dropout, consumed.

    Returns:
        Ṽ, the values weighted by the attention.

    Raises:
        TypeError: for arrays that are not floating-point, a mask that is not boolean, or an untyped key.
        ValueError: for shapes that disagree, or an implementation that does not exist or can not serve.

    Departures: a token that may attend nothing gets 0 (the formula is 0/0).

    Example:
        >>> import jax.numpy as jnp
        >>> from algorithms import UNIDIRECTIONAL
        >>> Q, K, V = jnp.array([[0.0, 0.0]]), jnp.array([[1.0, 1.0]]), jnp.array([[1.0, 3.0]])
        >>> scaled_dot_product_attention(Q, K, V, UNIDIRECTIONAL).tolist()
        [[1.0, 2.0]]

    Source: Phuong and Hutter 2022, Algorithm 4, lines 4-5.
    """
    return attend(Q, K, V, mask, 0, implementation, dropout, key)
