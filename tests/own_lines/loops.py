"""The lines of this package as NumPy loops, written from their formulas: what the cross-check compares them with."""

import numpy as np


def softmax(s):
    E = np.exp(s - max(s))
    return E / sum(E)


def silu(x):
    return x / (1 + np.exp(-x))


def rotated(Y, base):
    """Rotate rows i and i + d/2 of column t by t/base^(2i/d)."""
    d, l = Y.shape
    out = np.empty_like(Y)
    for t in range(l):
        for i in range(d // 2):
            angle = t / base ** (2 * i / d)
            a, b = Y[i, t], Y[i + d // 2, t]
            out[i, t] = a * np.cos(angle) - b * np.sin(angle)
            out[i + d // 2, t] = a * np.sin(angle) + b * np.cos(angle)
    return out


def heads_of(line, X, Z, W):
    """The queries, keys and values of each head; heads share keys and values."""
    H, H_kv = len(W.heads.W_q), len(W.heads.W_k)
    for h in range(H):
        g = h // (H // H_kv)
        base = line.positions.base
        yield rotated(W.heads.W_q[h] @ X, base), rotated(W.heads.W_k[g] @ Z, base), W.heads.W_v[g] @ Z


def sinks(line, X, Z, W, mask):
    Y = []
    for h, (Q, K, V) in enumerate(heads_of(line, X, Z, W.attention)):
        columns = []
        for t_x in range(X.shape[1]):
            seen = [t_z for t_z in range(Z.shape[1]) if mask[t_z, t_x]]
            scores = [K[:, t_z] @ Q[:, t_x] / np.sqrt(len(Q)) for t_z in seen]
            total = np.exp(W.s[h]) + sum(np.exp(s) for s in scores)
            columns.append(sum(np.exp(s) / total * V[:, t_z] for s, t_z in zip(scores, seen, strict=True)))
        Y.append(np.stack(columns, axis=1))
    return W.attention.W_o @ np.concatenate(Y)


def experts(line, X, W):
    columns = []
    for t in range(X.shape[1]):
        x = X[:, t]
        scores = [W.W_r[i] @ x for i in range(line.n)]
        chosen = sorted(range(line.n), key=lambda i: -scores[i])[: line.k]
        G = softmax(np.array([scores[i] for i in chosen]))
        E = W.experts
        columns.append(
            sum(g * E.W_mlp2[i] @ (silu(E.W_gate[i] @ x) * (E.W_mlp1[i] @ x)) for g, i in zip(G, chosen, strict=True))
        )
    return np.stack(columns, axis=1)
