"""Algorithms 8 to 10: the encoder-decoder, the encoder-only and the decoder-only transformer.

`z`, `x`: context and primary sequence, l_z and l_x (or l) token IDs; `theta`: parameters, in which W_u may be None.
"""

from typing import Any

import numpy as np

from .components import (
    Array,
    Tokens,
    gelu,
    layer_norm,
    mh_attention,
    positional_embedding,
    relu,
    softmax,
    token_embedding,
)


def ones_mask(l_z: int, l_x: int) -> Array:
    """Return the bidirectional mask [l_z, l_x]: every position may attend to every position."""
    return np.array([[True for _ in range(l_x)] for _ in range(l_z)])


def causal_mask(l: int) -> Array:
    """Return the unidirectional mask [l, l] of equation (3): t_x may attend to t_z if t_z <= t_x."""
    return np.array([[t_z <= t_x for t_x in range(l)] for t_z in range(l)])


def layer_norm_each(X: Array, norm: Any) -> Array:
    """Return X [d, l] with every column, token by token, replaced by its layer normalization."""
    l = X.shape[1]
    return np.stack([layer_norm(X[:, t], norm.gamma, norm.beta) for t in range(l)], axis=1)


def unembedding_matrix(theta: Any) -> Array:
    """Return W_u, which is the transpose of W_e if theta has no W_u."""
    return theta.W_e.T if theta.W_u is None else theta.W_u


def ed_transformer(z: Tokens, x: Tokens, theta: Any) -> Array:
    """Return Algorithm 8: the encoder-decoder transformer, P [N_V, l_x].

    Column t is the distribution of token t + 1 of x.

    `theta`: W_e, W_p, encoder (a list of attention, norm1, mlp, norm2), decoder (a list of self_attention, norm3,
    cross_attention, norm4, mlp, norm5), W_u.
    """
    W_e, W_p, W_u = theta.W_e, theta.W_p, unembedding_matrix(theta)
    l_z = len(z)  # line 1
    e = [token_embedding(z[t], W_e) + positional_embedding(t, W_p) for t in range(l_z)]  # line 2
    Z = np.stack(e, axis=1)  # line 3
    for W in theta.encoder:  # line 4
        Z = Z + mh_attention(Z, Z, W.attention, ones_mask(l_z, l_z))  # line 5
        Z = layer_norm_each(Z, W.norm1)  # line 6
        W_mlp1, b_mlp1, W_mlp2, b_mlp2 = W.mlp.W_mlp1, W.mlp.b_mlp1, W.mlp.W_mlp2, W.mlp.b_mlp2
        one = np.ones(l_z)
        Z = Z + W_mlp2 @ relu(W_mlp1 @ Z + np.outer(b_mlp1, one)) + np.outer(b_mlp2, one)  # line 7
        Z = layer_norm_each(Z, W.norm2)  # line 8
    l_x = len(x)  # line 10
    e = [token_embedding(x[t], W_e) + positional_embedding(t, W_p) for t in range(l_x)]  # line 11
    X = np.stack(e, axis=1)  # line 12
    for W in theta.decoder:  # line 13
        X = X + mh_attention(X, X, W.self_attention, causal_mask(l_x))  # line 14
        X = layer_norm_each(X, W.norm3)  # line 15
        X = X + mh_attention(X, Z, W.cross_attention, ones_mask(l_z, l_x))  # line 16
        X = layer_norm_each(X, W.norm4)  # line 17
        W_mlp3, b_mlp3, W_mlp4, b_mlp4 = W.mlp.W_mlp1, W.mlp.b_mlp1, W.mlp.W_mlp2, W.mlp.b_mlp2
        one = np.ones(l_x)
        X = X + W_mlp4 @ relu(W_mlp3 @ X + np.outer(b_mlp3, one)) + np.outer(b_mlp4, one)  # line 18
        X = layer_norm_each(X, W.norm5)  # line 19
    P: Array = softmax(W_u @ X)  # return
    return P


def e_transformer(x: Tokens, theta: Any) -> Array:
    """Return Algorithm 9: the encoder-only transformer, P [N_V, l].

    Column t is the distribution of token t of the sequence before masking.

    `theta`: W_e, W_p, layers (a list of attention, norm1, mlp, norm2), W_f [d_f, d_e], b_f, norm, W_u ([N_V, d_f]).
    """
    W_e, W_p, W_u = theta.W_e, theta.W_p, unembedding_matrix(theta)
    l = len(x)  # line 1
    e = [token_embedding(x[t], W_e) + positional_embedding(t, W_p) for t in range(l)]  # line 2
    X = np.stack(e, axis=1)  # line 3
    one = np.ones(l)
    for W in theta.layers:  # line 4
        X = X + mh_attention(X, X, W.attention, ones_mask(l, l))  # line 5
        X = layer_norm_each(X, W.norm1)  # line 6
        W_mlp1, b_mlp1, W_mlp2, b_mlp2 = W.mlp.W_mlp1, W.mlp.b_mlp1, W.mlp.W_mlp2, W.mlp.b_mlp2
        X = X + W_mlp2 @ gelu(W_mlp1 @ X + np.outer(b_mlp1, one)) + np.outer(b_mlp2, one)  # line 7
        X = layer_norm_each(X, W.norm2)  # line 8
    X = gelu(theta.W_f @ X + np.outer(theta.b_f, one))  # line 10
    X = layer_norm_each(X, theta.norm)  # line 11
    P: Array = softmax(W_u @ X)  # return
    return P


def d_transformer(x: Tokens, theta: Any) -> Array:
    """Return Algorithm 10: the decoder-only transformer, P [N_V, l]; column t is the distribution of token t + 1.

    `theta`: W_e, W_p, layers (a list of norm1, attention, norm2, mlp), norm, W_u.
    """
    W_e, W_p, W_u = theta.W_e, theta.W_p, unembedding_matrix(theta)
    l = len(x)  # line 1
    e = [token_embedding(x[t], W_e) + positional_embedding(t, W_p) for t in range(l)]  # line 2
    X = np.stack(e, axis=1)  # line 3
    one = np.ones(l)
    for W in theta.layers:  # line 4
        X_tilde = layer_norm_each(X, W.norm1)  # line 5
        X = X + mh_attention(X_tilde, X_tilde, W.attention, causal_mask(l))  # line 6
        X_tilde = layer_norm_each(X, W.norm2)  # line 7
        W_mlp1, b_mlp1, W_mlp2, b_mlp2 = W.mlp.W_mlp1, W.mlp.b_mlp1, W.mlp.W_mlp2, W.mlp.b_mlp2
        X = X + W_mlp2 @ gelu(W_mlp1 @ X_tilde + np.outer(b_mlp1, one)) + np.outer(b_mlp2, one)  # line 8
    X = layer_norm_each(X, theta.norm)  # line 10
    P: Array = softmax(W_u @ X)  # return
    return P
