"""Algorithms 1 to 7 and the functions they are made of.

`v`, `l`: a token ID in 0..N_V-1, a position in 0..l_max-1; `W_e` [d_e, N_V], `W_p` [d_e, l_max], `W_u` [N_V, d_e]: the
matrices of embedding and unembedding; `e` [d_e]: activations of one token; `X` [d_x, l_x], `Z` [d_z, l_z]: primary and
context sequence; `W_qkv`: W_q [d_attn, d_x], W_k [d_attn, d_z], W_v [d_out, d_z], b_q, b_k [d_attn], b_v [d_out];
`mask`: boolean [l_z, l_x], True where t_x may attend to t_z; `gamma`, `beta` [d_e]: scale and offset.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

Array = NDArray[Any]
Tokens = Sequence[int] | Array  # token IDs


def exp(A: Array) -> Array:
    """Return the exponential, with exp(-inf) = 0 also where a complex -inf has lost its imaginary part."""
    A = np.asarray(A)
    with np.errstate(invalid="ignore"):
        return np.where(np.real(A) == -np.inf, 0.0, np.exp(A))


def softmax(A: Array) -> Array:
    """Return equation (2): the softmax of each column of A [l_z, l_x]; a vector counts as one column."""
    A = np.asarray(A)
    if A.ndim == 1:
        numerator = exp(A)
        return numerator / sum(numerator)
    return np.stack([softmax(A[:, t_x]) for t_x in range(A.shape[1])], axis=1)


def relu(x: Array) -> Array:
    """Return max(0, x), element by element; a complex x is judged by its real part."""
    x = np.asarray(x)
    return np.where(np.real(x) > 0, x, 0.0)


def gelu(x: Array) -> Array:
    """Return equation (5): x times the probability that a standard normal variable is below x."""
    x = np.asarray(x)
    return x * (1 + erf(x / math.sqrt(2))) / 2


def token_embedding(v: int, W_e: Array) -> Array:
    """Return Algorithm 1: the embedding of one token, e [d_e]."""
    e: Array = W_e[:, v]  # return
    return e


def positional_embedding(l: int, W_p: Array) -> Array:
    """Return Algorithm 2: the embedding of one position, e_p [d_e]."""
    e_p: Array = W_p[:, l]  # return
    return e_p


def sinusoidal_positional_embedding(d_e: int, l_max: int) -> Array:
    """Return the hard-coded W_p [d_e, l_max] given beside Algorithm 2, whose t and i start at 1.

    Raises:
        ValueError: if d_e is odd, for which the paper leaves the last row undefined.
    """
    if d_e % 2:
        raise ValueError(f"d_e must be even, for rows come in pairs (sin, cos), but it is {d_e}")
    W_p = np.empty((d_e, l_max))
    for t in range(1, l_max + 1):
        for i in range(1, d_e // 2 + 1):
            W_p[2 * i - 1 - 1, t - 1] = math.sin(t / l_max ** (2 * i / d_e))
            W_p[2 * i - 1, t - 1] = math.cos(t / l_max ** (2 * i / d_e))
    return W_p


def single_query_attention(e: Array, E: Array, W_qkv: Any) -> Array:
    """Return Algorithm 3: attention of one token e [d_in] to the T columns of E [d_in, T], v_tilde [d_out]."""
    T = E.shape[1]
    d_attn = W_qkv.W_q.shape[0]
    q = W_qkv.W_q @ e + W_qkv.b_q  # line 1
    k = [W_qkv.W_k @ E[:, t] + W_qkv.b_k for t in range(T)]  # line 2
    v = [W_qkv.W_v @ E[:, t] + W_qkv.b_v for t in range(T)]  # line 3
    scores = [np.exp(q @ k[t] / math.sqrt(d_attn)) for t in range(T)]
    alpha = [scores[t] / sum(scores) for t in range(T)]  # line 4
    v_tilde: Array = sum((alpha[t] * v[t] for t in range(T)), start=np.zeros(len(W_qkv.b_v)))  # return
    return v_tilde


def attention(X: Array, Z: Array, W_qkv: Any, mask: Array) -> Array:
    """Return Algorithm 4: one head's attention of X to Z, V_tilde [d_out, l_x].

    A column of the mask without a True, for which the paper's formula is 0/0, gives a column of zeros.

    Raises:
        ValueError: if the mask has another shape.
    """
    l_x, l_z = X.shape[1], Z.shape[1]
    if np.shape(mask) != (l_z, l_x):
        raise ValueError(f"mask must have the shape [l_z, l_x] = {(l_z, l_x)}, but has {np.shape(mask)}")
    d_attn = W_qkv.W_q.shape[0]
    Q = W_qkv.W_q @ X + np.outer(W_qkv.b_q, np.ones(l_x))  # line 1
    K = W_qkv.W_k @ Z + np.outer(W_qkv.b_k, np.ones(l_z))  # line 2
    V = W_qkv.W_v @ Z + np.outer(W_qkv.b_v, np.ones(l_z))  # line 3
    S = K.T @ Q  # line 4
    t_xs, t_zs = range(l_x), range(l_z)
    S = np.array([[S[t_z, t_x] if mask[t_z, t_x] else -np.inf for t_x in t_xs] for t_z in t_zs])  # line 5
    weights = []
    with np.errstate(invalid="ignore"):
        scaled_S = S / math.sqrt(d_attn)
    for t_x in t_xs:
        may_attend = any(mask[t_z, t_x] for t_z in t_zs)
        weights.append(softmax(scaled_S[:, t_x]) if may_attend else np.zeros(l_z))
    V_tilde: Array = V @ np.stack(weights, axis=1)  # return
    return V_tilde


def mh_attention(X: Array, Z: Array, W: Any, mask: Array) -> Array:
    """Return Algorithm 5: multi-head attention of X to Z, V_tilde [d_out, l_x].

    `W`: heads (a list of what `attention` takes, d_out being d_mid), W_o [d_out, H d_mid], b_o [d_out].
    """
    H = len(W.heads)
    heads = []
    for h in range(H):  # line 1
        Y_h = attention(X, Z, W.heads[h], mask)  # line 2
        heads.append(Y_h)
    Y = np.concatenate(heads, axis=0)  # line 3
    V_tilde: Array = W.W_o @ Y + np.outer(W.b_o, np.ones(X.shape[1]))  # return
    return V_tilde


def layer_norm(e: Array, gamma: Array, beta: Array) -> Array:
    """Return Algorithm 6: layer normalization of one token, e_hat [d_e], with no term added to the variance."""
    d_e = len(e)
    m = sum(e[i] for i in range(d_e)) / d_e  # line 1
    v = sum((e[i] - m) * (e[i] - m) for i in range(d_e)) / d_e  # line 2
    e_hat: Array = (e - m) / np.sqrt(v) * gamma + beta  # return
    return e_hat


def unembedding(e: Array, W_u: Array) -> Array:
    """Return Algorithm 7: the distribution over the vocabulary, p [N_V]."""
    p: Array = softmax(W_u @ e)  # line 1
    return p
