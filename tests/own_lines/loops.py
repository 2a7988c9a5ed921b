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
        Q, K, V = W.heads.W_q[h] @ X, W.heads.W_k[g] @ Z, W.heads.W_v[g] @ Z
        base = getattr(line.positions, "base", None)
        yield (*(rotated(Y, base) if base else Y for Y in (Q, K)), V)


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


def map_of(K, Q, mask, t_x):
    """One column of the softmax of scores, over the tokens that the mask permits."""
    A = np.zeros(K.shape[1])
    seen = [t_z for t_z in range(K.shape[1]) if mask[t_z, t_x]]
    A[seen] = softmax(np.array([K[:, t_z] @ Q[:, t_x] / np.sqrt(len(Q)) for t_z in seen]))
    return A


def rms_norm(e, gamma, epsilon):
    return e / np.sqrt(np.mean(e * e) + epsilon) * gamma


def differential(line, X, Z, W, mask):
    a, b, c, d = W.vectors
    weight = np.exp(sum(a * b)) - np.exp(sum(c * d)) + line.lambda_0
    H, H_kv = len(W.W_q2), len(W.W_k2)
    Y = []
    for h, (Q, K, V) in enumerate(heads_of(line, X, Z, W.attention)):
        Q_2 = rotated(W.W_q2[h] @ X, line.positions.base)
        K_2 = rotated(W.W_k2[h // (H // H_kv)] @ Z, line.positions.base)
        columns = []
        for t_x in range(X.shape[1]):
            y = V @ (map_of(K, Q, mask, t_x) - weight * map_of(K_2, Q_2, mask, t_x))
            columns.append((1 - line.lambda_0) * rms_norm(y, W.gamma, 1e-5))
        Y.append(np.stack(columns, axis=1))
    return W.attention.W_o @ np.concatenate(Y)


def latent(line, X, Z, W, mask):
    C = np.stack([rms_norm(W.W_c @ Z[:, t], W.norm_c.gamma, 1e-6) for t in range(Z.shape[1])], axis=1)
    K_r = rotated(W.W_kr @ Z, line.positions.base)
    Y = []
    for h in range(len(W.W_q)):
        Q = np.concatenate([W.W_q[h] @ X, rotated(W.W_qr[h] @ X, line.positions.base)])
        K, V = np.concatenate([W.W_k[h] @ C, K_r]), W.W_v[h] @ C
        Y.append(np.stack([V @ map_of(K, Q, mask, t_x) for t_x in range(X.shape[1])], axis=1))
    return W.W_o @ np.concatenate(Y)


def ordered(line, X, Z, W, mask):
    Y = []
    for h, (Q, K, V) in enumerate(heads_of(line, X, Z, W)):
        log_f, columns = -np.log1p(np.exp(-Q[0])), []
        for t_x in range(X.shape[1]):
            seen = np.flatnonzero(mask[:, t_x])
            decay = W.W_o[h, 0] * np.array([log_f[t_z + 1 : t_x + 1].sum() for t_z in seen])
            columns.append(V[:, seen] @ softmax(K[:, seen].T @ Q[:, t_x] / np.sqrt(len(Q)) + decay))
        Y.append(np.stack(columns, axis=1))
    return W.W_o @ np.concatenate(Y)


def slopes(line, X, Z, W, mask):
    Y, t_z, t_x = [], np.arange(Z.shape[1])[:, None], np.arange(X.shape[1])
    for h, (Q, K, V) in enumerate(heads_of(line, X, Z, W)):
        S = K.T @ Q / np.sqrt(len(Q)) - np.exp(W.of_positions.a[h]) * np.abs(t_z - t_x)
        A = np.exp(np.where(mask, S, -np.inf))
        Y.append(V @ (A / A.sum(axis=0)))
    return W.W_o @ np.concatenate(Y)


def retention(line, X, Z, W, mask):
    """Sums of values, each multiplied by e^{−e^a} for each token that it is away."""
    V, decay = W.W_v @ Z, np.exp(-np.exp(W.a))
    Y = np.zeros((len(V), X.shape[1]))
    for t_x in range(X.shape[1]):
        for t_z in range(Z.shape[1]):
            if mask[t_z, t_x]:
                Y[:, t_x] += decay ** abs(t_x - t_z) * V[:, t_z]
    return W.W_o @ Y
