"""The lines of Algorithms 4 to 7 that published models change, each one function in NumPy loops.

Written from the cited publications, never from the JAX code. Weights are [d_out, d_in], columns are tokens, and a
parameter that is None or missing is not there. All functions also work in complex arithmetic.

`X` [d_x, l_x] (or [d, l]), `Z` [d_z, l_z]: primary and context sequence; `e` [d_e]: activations of one token; `gamma`,
`beta` [d_e]: scale and offset; `epsilon`: added to the variance or the mean square; `offset`: added to gamma: 0, or
Gemma's 1; `norm`: gamma and, unless absent, beta; or None; `line`: the record of an attention, MLP or norm: see `family`;
`order`: of norm and sublayer; `f`: activation function; `clip`: c or None; `mask`: boolean [l_z, l_x]; `x_positions`
[l_x], `z_positions` [l_z]; `bidirectional`: which of T5's buckets apply; `distances`: T5's tables [H, num_buckets].
"""

import copy
import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from .components import Array, Tokens, gelu, relu, softmax
from .positions import Positions, alibi_biases, alibi_slopes, distance_biases, kind_of, rotate, transformer_xl_distances


def silu(x: Array) -> Array:
    """Return x sigma(x) = x / (1 + exp(-x)) (Hendrycks and Gimpel 2016; Llama, Mistral, Qwen)."""
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Array) -> Array:
    """Return x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016; GPT-2, Gemma, T5 1.1)."""
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_sigmoid(x: Array) -> Array:
    """Return x sigma(1.702 x) (Hendrycks and Gimpel 2016; gpt-oss, Agarwal et al. 2025)."""
    return x / (1 + np.exp(-1.702 * x))


def relu_squared(x: Array) -> Array:
    """Return max(0, x)^2 (So et al. 2021, "Primer", section 3; nanochat)."""
    return relu(x) * relu(x)


def xielu(x: Array, alpha_p: float, alpha_n: float) -> Array:
    """Return softplus(alpha_p) x^2 + x/2 for x > 0, else (1/2 + softplus(alpha_n)) (e^x - 1 - x) + x/2 (Apertus)."""
    p, n = np.log1p(np.exp(alpha_p)), np.log1p(np.exp(alpha_n)) + 1 / 2
    below = np.where(np.real(x) > 0, 0, x)
    return np.where(np.real(x) > 0, p * x * x, n * (np.exp(below) - 1 - below)) + x / 2


ACTIVATIONS = {
    "relu": relu,
    "relu_squared": relu_squared,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_sigmoid": gelu_sigmoid,
    "silu": silu,
}


def part(W: Any, name: str) -> Any:
    """Return a parameter, or None if W is None or does not have it."""
    return getattr(W, name, None)


def linear(W: Array, b: Array | None, X: Array) -> Array:
    """Return W X + b 1^T, without the bias where there is none (Llama, T5, document 000)."""
    if b is None:
        return W @ X
    return W @ X + np.outer(b, np.ones(X.shape[1]))


def layer_norm(e: Array, gamma: Array, beta: Array | None, epsilon: float) -> Array:
    """Return Algorithm 6 with a term added to the variance (Ba et al. 2016; document 003, section 12.3.2).

    e_hat = (e - m) / sqrt(v + epsilon) * gamma + beta.
    """
    d_e = len(e)
    m = sum(e[i] for i in range(d_e)) / d_e  # line 1
    v = sum((e[i] - m) * (e[i] - m) for i in range(d_e)) / d_e  # line 2
    e_hat = (e - m) / np.sqrt(v + epsilon) * gamma + (0.0 if beta is None else beta)  # return
    return e_hat


def rms_norm(e: Array, gamma: Array, epsilon: float = 0.0, offset: float = 0.0) -> Array:
    """Return Algorithm 6 with m = beta = 0.

    Sources: Zhang and Sennrich 2019; Gopher, document 004; T5, Llama; Gemma, with offset 1.
    e_hat = e / sqrt(sum_i e[i]^2 / d_e + epsilon) * (gamma + offset).
    """
    d_e = len(e)
    v = sum(e[i] * e[i] for i in range(d_e)) / d_e  # line 2
    e_hat = e / np.sqrt(v + epsilon) * (gamma + offset)  # return
    return e_hat


def rms_columns(X: Array, gamma: Array, epsilon: float) -> Array:
    """Return X with every column RMS-normalized, which is no call of Algorithm 6."""
    return np.stack([e / np.sqrt((e * e).sum() / len(e) + epsilon) * gamma for e in X.T], axis=1)


def normalize(X: Array, norm: Any, line: Any) -> Array:
    """Return X with every column normalized by the line, an RMS norm or a layer norm, or X where this norm is not there.

    A norm without gamma multiplies by 1 (nanochat), one without beta adds 0 (Cohere).
    """
    if norm is None:
        return X
    columns, is_rms = [], type(line).__name__ == "RMSNorm"
    for t in range(X.shape[1]):
        if norm.gamma is None:
            gamma, offset = np.ones(len(X)), 0.0
        else:
            gamma, offset = norm.gamma, part(line, "offset")
        if is_rms:
            columns.append(rms_norm(X[:, t], gamma, line.epsilon, offset))
        else:
            columns.append(layer_norm(X[:, t], gamma, part(norm, "beta"), line.epsilon))
    return np.stack(columns, axis=1)


def before(X: Array, norm: Any, order: str, line: Any) -> Array:
    """Return what a residual sublayer reads: norm(X) where norms come first, else X; a norm that is None is left out.

    norm_first: X + norm_out(f(norm(X))) (GPT-2; norm_out: Gemma 2; norm_out without norm: OLMo 2; for attention:
    document 000); norm_last: norm(X + norm_out(f(X))) (Vaswani et al. 2017; document 003, section 12.6); no_norm: X +
    norm_out(f(X)).
    """
    if order not in ("norm_first", "norm_last", "no_norm"):
        raise ValueError(f"order must be norm_first, norm_last or no_norm, but is {order}")
    return normalize(X, norm, line) if order == "norm_first" else X


def after(X: Array, norm: Any, order: str, line: Any) -> Array:
    """Return what becomes of the sum of X and a residual sublayer: see `before`."""
    return normalize(X, norm, line) if order == "norm_last" else X


def feed_forward(X: Array, W: Any, line: Any, f: Any) -> Array:
    """Return the MLP of a line, or its experts; `f`: the algorithm's own activation, where the line has none."""
    if hasattr(line, "own"):
        return line.own(X, W)
    f = ACTIVATIONS[line.activation] if line.activation else f
    return experts(X, W, f, line) if type(line).__name__ == "Experts" else mlp(X, W, f, line.clip, line.factors)


def mlp(X: Array, W: Any, f: Any, clip: float | None = None, factors: Sequence[float] = (1.0, 1.0)) -> Array:
    """Return W_mlp2 f(W_mlp1 X), or with a gate W_mlp2 (f(W_gate X) * W_mlp1 X) (Shazeer 2020; Llama; T5 1.1).

    With a clip c, the gate is f(min(W_gate X, c)) * (1 + the entries of W_mlp1 X, at least -c and at most c) (gpt-oss,
    Agarwal et al. 2025). With factors c_1, c_2 it is f(c_1 W_gate X) * c_2 W_mlp1 X (Falcon-H1, Zuo et al. 2025).

    `W`: W_mlp1 [d_mlp, d_e], W_mlp2 [d_e, d_mlp]; where there: W_gate [d_mlp, d_e], b_mlp1, b_gate [d_mlp], b_mlp2
    [d_e]. Where there are alpha_p and alpha_n, the activation is xIELU.
    """
    if part(W, "alpha_p") is not None:
        f = functools.partial(xielu, alpha_p=W.alpha_p, alpha_n=W.alpha_n)
    U = linear(W.W_mlp1, part(W, "b_mlp1"), X)
    W_gate = part(W, "W_gate")
    if W_gate is None:
        return linear(W.W_mlp2, part(W, "b_mlp2"), f(U))
    G = linear(W_gate, part(W, "b_gate"), X)
    if clip is not None:
        G = np.where(np.real(G) > clip, clip, G)
        U = clipped(U, clip) + 1
    return linear(W.W_mlp2, part(W, "b_mlp2"), f(factors[0] * G) * (factors[1] * U))


def experts(X: Array, W: Any, f: Any, line: Any) -> Array:
    """Return what the chosen experts give every token, weighted, and what the shared ones give it.

    Sources: Shazeer et al. 2017; Mixtral, Jiang et al. 2024; OLMoE, Muennighoff et al. 2024, not renormalized;
    DeepSeek-V3, DeepSeek-AI 2024, equations 12 to 16; Qwen3-Next, with sigma(w_s x) times the shared ones; Llama 4,
    Meta 2025, weighted "inputs", where the weight multiplies x; Gemma 4 26B-A4B, Gemma Team 2026, with a norm of each
    part's input and of both results, 1/sqrt(d_e) times what the router reads, and s_i times the weight of expert i.

    `W`: W_r [n, d_e], b_r? [n], b_choice? [n], experts (what `mlp` takes, with an axis of n in front), shared? (what
    `mlp` takes, norm_out?), w_s? [d_e], norms? (shared, router, inputs, outputs), s? [n]; `line`: see
    `weights_of_experts`.
    """
    norm, norms, X_r, X_s, columns = part(line, "normalize_output"), part(W, "norms"), X, X, []
    if norms is not None:
        X_s, X_r, X = (normalize(X, of, norm) for of in (norms.shared, norms.router, norms.inputs))
        X_r = X_r / math.sqrt(len(X))
    for t in range(X.shape[1]):
        router, total = linear(W.W_r, part(W, "b_r"), X_r[:, t : t + 1])[:, 0], 0 * X[:, t : t + 1]
        for i, weight in weights_of_experts(router, part(W, "b_choice"), line).items():
            arrays = {name: W_all[i] for name, W_all in vars(W.experts).items() if W_all is not None}
            scaled = weight if part(W, "s") is None else weight * W.s[i]
            before, after = (scaled, 1) if line.weighted == "inputs" else (1, scaled)
            x = before * X[:, t : t + 1]
            total = total + after * mlp(x, SimpleNamespace(**arrays), f, line.clip, line.factors)
        columns.append(total[:, 0])
    Y = normalize(np.stack(columns, axis=1), norms and norms.outputs, norm)
    if part(W, "shared") is None:
        return Y
    shared = normalize(mlp(X_s, W.shared, f, line.clip, line.factors), part(W.shared, "norm_out"), norm)
    return Y + (shared if part(W, "w_s") is None else shared * sigma(W.w_s @ X_s))


def weights_of_experts(router: Array, b_choice: Array | None, line: Any) -> dict[int, Any]:
    """Return the weights of the k experts that a token chooses, by their numbers.

    `router`: the token's column of W_r X + b_r, [n]; `b_choice`: added to the scores of the choice only, [n] or None;
    `line`: k, scores ("softmax" or "sigmoid"), renormalized, factor, and for a choice within the best groups, by the sum
    of their best scores, groups, chosen_groups and best, the number of these.
    """
    n = len(router)
    scores = softmax(router) if line.scores == "softmax" else sigma(router)
    by = [scores[i].real + (0 if b_choice is None else b_choice[i].real) for i in range(n)]
    size = n // line.groups
    in_groups = [range(g * size, (g + 1) * size) for g in range(line.groups)]
    best = [sum(sorted((by[i] for i in group), reverse=True)[: line.best]) for group in in_groups]
    groups = sorted(range(len(best)), key=lambda g: -best[g])[: line.chosen_groups]
    candidates = [i for g in sorted(groups) for i in in_groups[g]]
    chosen = sorted(candidates, key=lambda i: -by[i])[: line.k]
    total = sum(scores[i] for i in chosen) if line.renormalized else 1
    return {i: line.factor * scores[i] / total for i in chosen}


def normalize_head(h: int, Ys: Sequence[Array], gamma: Array | None, line: Any, together: bool) -> Array:
    """Return the query (or key) of head h, RMS-normalized, between lines 1-2 and the rotation, [d_attn, l].

    gamma has d_attn entries: every head's column by itself (Qwen 3, Yang et al. 2025; Gemma 3, with offset 1); together,
    H d_attn entries: the column of all heads, one below the other, as one (OLMo 2, OLMo team 2025).

    `Ys`: one array [d_attn, l] for each head; `line`: None: no norm.
    """
    if line is None:
        return Ys[h]
    Y = np.concatenate(Ys) if together else Ys[h]
    Y, d_attn = normalize(Y, SimpleNamespace(gamma=gamma), line), len(Ys[h])
    return Y[h * d_attn : (h + 1) * d_attn] if together else Y


def cap(S: Array, c: float | None) -> Array:
    """Return c tanh(S / c), or S where there is no cap (Gemma 2, Gemma team 2024, section 2; scores and logits)."""
    return S if c is None else c * np.tanh(S / c)


def clipped(Y: Array, c: float) -> Array:
    """Return Y with every entry at least -c and at most c; a complex one keeps its step, or has none where it is cut.

    `Y`: queries, keys, values or what else; `c`: a number. Result: An array of Y's shape.
    """
    return np.where(np.real(Y) > c, c, np.where(np.real(Y) < -c, -c, Y))


def attention(
    h: int,
    X: Array,
    Z: Array,
    W: Any,
    mask: Array,
    line: Any,
    *,
    x_positions: Positions,
    z_positions: Positions,
    bidirectional: bool,
    distances: Array | None = None,
    keys: dict[int, tuple[Array, Array]] | None = None,
) -> Array:
    """Return Algorithm 4 with its changed lines, of head h, [d_mid, l_x]; the rest is as in `mh_attention`.

    A column that may attend to nothing gives zeros. Head h = 0..H-1 reads keys and values of group g = h // (H / H_kv)
    (Ainslie et al. 2023; Shazeer 2019 for one group). Before line 4 come the heads' norms, the clip (OLMoE, Muennighoff
    et al. 2024, clip_qkv), the rotation and the temperature, 1 + c ln(1 + floor((t + first) / n)) times the query at t
    (Nakanishi 2025, "Scalable-Softmax"; Llama 4, Meta 2025), and Transformer-XL's u; in line 4, S = K^T Q is multiplied
    by sqrt(d_attn) times the scale, for the last line divides by the former; before line 5 come what distance adds
    (Transformer-XL, T5, ALiBi) and the cap. No published model has both a cap and added distances, so this order of the two is a choice.
    Values have a norm without gamma where the line says so, and where a group has no W_v, they are its keys before norm
    and rotation. `keys` gets the keys and values of group g that the scores read; for a line with keys_of it has those of
    an earlier layer, which the scores read (Gemma 4, Gemma team 2026). Where W has sinks s [H], the softmax has one score
    more, s[h], whose weight no value takes (gpt-oss, Agarwal et al. 2025).
    """
    H, given = len(W.heads), keys if line.keys_of is not None else None
    groups = W.heads if part(W, "groups") is None else W.groups
    n = len(groups) if given is None else len(given)
    g = h // (H // n)
    positions, kind = line.positions, kind_of(line.positions)
    Qs = [linear(W_h.W_q, part(W_h, "b_q"), X) for W_h in W.heads]
    if given is None:
        Ks = [linear(W_g.W_k, part(W_g, "b_k"), Z) for W_g in groups]
        V_own = Ks[g] if part(groups[g], "W_v") is None else linear(groups[g].W_v, part(groups[g], "b_v"), Z)
    else:
        Ks, V_own = [given[i][0] for i in range(n)], given[g][1]
    Q = Qs[h]  # line 1
    K = Ks[g]  # line 2
    V = V_own  # line 3
    last, together = line.positions_first, line.heads_together

    def placed(i: int, Ys: Sequence[Array], gamma: Array | None, at: Positions) -> Array:
        Y = normalize_head(i, Ys, gamma, None if last else line.normalize_heads, together)
        Y = Y if line.clip is None else clipped(Y, line.clip)
        Y = rotate(Y, at, positions) if kind == "Rotary" else Y
        return normalize_head(0, [Y], gamma, line.normalize_heads, False) if last else Y  # of each head by itself

    Q = placed(h, Qs, part(W, "gamma_q"), x_positions)
    if given is None:
        K = placed(g, Ks, part(W, "gamma_k"), z_positions)
        V = normalize_head(0, [V if line.clip is None else clipped(V, line.clip)], None, line.normalize_values, False)
        if keys is not None:
            keys[g] = K, V
    grow = positions if kind == "Temperature" else part(positions, "temperature")
    if grow is not None:
        Q = Q * np.array([1 + grow.c * math.log(1 + (t + grow.first) // grow.n) for t in x_positions])
    d_attn, l_x, l_z = Q.shape[0], Q.shape[1], K.shape[1]
    is_relative = kind == "TransformerXL"
    Q_u = Q + W.u[h][:, None] if is_relative else Q
    s = 1.0 if line.scale is None else line.scale * math.sqrt(d_attn)
    S = s * np.array([[K[:, t_z] @ Q_u[:, t_x] for t_x in range(l_x)] for t_z in range(l_z)])  # line 4
    if is_relative:
        S = S + s * transformer_xl_distances(Q, W.W_r[h], W.v[h], x_positions, z_positions, positions.base)
    S = S + math.sqrt(d_attn) * added_by_distance(h, H, positions, x_positions, z_positions, bidirectional, distances)
    S = cap(S, None if line.cap is None else line.cap * math.sqrt(d_attn))
    S = np.array([[S[t_z, t_x] if mask[t_z, t_x] else -np.inf for t_x in range(l_x)] for t_z in range(l_z)])  # line 5
    weights = []
    with np.errstate(invalid="ignore"):
        scaled_S = S / math.sqrt(d_attn)
    for t_x in range(l_x):
        may_attend = any(mask[t_z, t_x] for t_z in range(l_z))
        s = part(W, "s")
        column = scaled_S[:, t_x] if s is None else np.append(scaled_S[:, t_x], s[h])
        weights.append(softmax(column)[:l_z] if may_attend else np.zeros(l_z))
    V_tilde: Array = V @ np.stack(weights, axis=1)  # return
    return V_tilde


def added_by_distance(
    h: int,
    H: int,
    positions: Any,
    x_positions: Positions,
    z_positions: Positions,
    bidirectional: bool,
    distances: Array | None,
) -> Array | float:
    """Return what the scores of head h of H gain by the distance of the tokens: T5's table, ALiBi's slope, or 0."""
    if kind_of(positions) == "Distances":
        assert distances is not None
        numbers = positions.buckets, positions.farthest
        return distance_biases(distances[h], x_positions, z_positions, bidirectional, *numbers)
    return alibi_biases(alibi_slopes(H)[h], x_positions, z_positions) if kind_of(positions) == "ALiBi" else 0.0


def across(line: Any) -> Any:
    """Return the line by which tokens attend to a context, from which they have no distances (T5)."""
    line = copy.copy(line)
    object.__setattr__(line, "positions", None)
    return line


def mh_attention(X: Array, Z: Array, W: Any, mask: Array, line: Any, **where: Any) -> Array:
    """Return Algorithm 5 with the changed lines of both it and Algorithm 4, or what a line has in its place, [d_out, l_x].

    `W`: heads (H of W_q, b_q?), groups (H_kv of W_k, b_k?, W_v, b_v?; without groups each head has these), gamma_q?,
    gamma_k?, W_r, u, v [H, ...] for Transformer-XL, s?, W_g? [H, d_mid, d_x] (a gate of what each head gives, Qwen3-Next),
    W_o, b_o?; `line`: an attention's scale (None: 1 / sqrt(d_attn); T5, GPT-Neo and document 000: 1), cap, positions, clip
    (None or c: queries, keys and values are cut to [-c, c]), normalize_heads (None or a norm), heads_together (one norm
    of all heads), positions_first (these norms follow the positions, HunYuan); or one of `IN_PLACE_OF_HEADS`; or
    Parallel, an attention and one of these (Zuo et al. 2025, "Falcon-H1"); or one with "own"; `where`: x_positions; z_positions; bidirectional; distances?.

    Raises:
        ValueError: if the line is of another kind.
    """
    kind = type(line).__name__
    if hasattr(line, "own"):
        return np.asarray(line.own(X, Z, W, mask))
    if kind == "Parallel":
        Y = mh_attention(X, Z, W.attention, mask, line.attention, **where)
        return line.factors[0] * Y + line.factors[1] * mh_attention(X, Z, W.recurrence, mask, line.recurrence)
    if kind in IN_PLACE_OF_HEADS:
        return IN_PLACE_OF_HEADS[kind](X, W, mask, line)
    if kind == "Latent":
        return latent_attention(X, Z, W, mask, line, where["x_positions"], where["z_positions"])
    if kind != "Attention":
        raise ValueError(f"expected a line that the oracle has, got {kind}")
    heads = []
    for h in range(len(W.heads)):  # line 1
        gate = 1.0 if part(W, "W_g") is None else sigma(W.W_g[h] @ X)
        Y_h = gate * attention(h, X, Z, W, mask, line, **where)  # line 2
        heads.append(Y_h)
    Y = np.concatenate(heads, axis=0)  # line 3
    V_tilde: Array = linear(W.W_o, part(W, "b_o"), Y)  # return
    return V_tilde


def latent_attention(
    X: Array, Z: Array, W: Any, mask: Array, line: Any, x_positions: Positions, z_positions: Positions
) -> Array:
    """Return multi-head latent attention (DeepSeek-V2, DeepSeek-AI 2024, equations 9 to 19, and 37 to 47), [d_e, l_x].

    With YaRN, scores are multiplied by (1 + s ln(factor) / 10)^2 (the authors' code: mscale_all_dim).

    `W`: W_cq? [d_q, d_e], norm_q?, W_q [H, d_attn, d_q], W_qr [H, d_r, d_q], W_c [d_c, d_e], norm_c, W_kr [d_r, d_e],
    W_k [H, d_attn, d_c], W_v [H, d_mid, d_c], W_o [d_e, H d_mid]; `line`: positions (those of `rotate`, with scores s in
    their scaling, or None: nothing is rotated, as in Kimi Linear), norm of the latents, indexer?: k and pairs of an indexer (DeepSeek-AI 2025, "DeepSeek-V3.2", equation 1), whose parameters are `W`.index: W_q [n, d, d_q],
    W_k [d, d_e], norm_k, W_w [n, d_e]. A token then reads the k tokens z, and ties with the last, with the largest sum over its heads of (W_w x)
    ReLU(k_z . q), of those that the mask permits; the first d_r rows of q and k are rotated.
    """
    rotary, epsilon, indexer = line.positions, line.norm.epsilon, line.indexer

    def turned(Y: Array, positions: Positions, pairs: str | None = None) -> Array:
        return Y if rotary is None else rotate(Y, positions, rotary, pairs)

    C_q = X if part(W, "W_cq") is None else rms_columns(W.W_cq @ X, W.norm_q.gamma, epsilon)
    C = rms_columns(W.W_c @ Z, W.norm_c.gamma, epsilon)
    K_r = turned(W.W_kr @ Z, z_positions)
    if indexer is not None:
        d_r, pairs = len(K_r), indexer.pairs
        K, norm = W.index.W_k @ Z, W.index.norm_k
        centred = [e - e.sum() / len(e) for e in K.T]
        K = np.stack([e / np.sqrt((e * e).sum() / len(e) + 1e-6) * norm.gamma + norm.beta for e in centred], axis=1)
        K = np.concatenate([turned(K[:d_r], z_positions, pairs), K[d_r:]])
        I = np.zeros(mask.shape)
        for h in range(len(W.index.W_q)):
            Q = W.index.W_q[h] @ C_q
            Q = np.concatenate([turned(Q[:d_r], x_positions, pairs), Q[d_r:]])
            for t_z, t_x in np.ndindex(mask.shape):
                I[t_z, t_x] += (W.index.W_w[h] @ X[:, t_x]) * relu(K[:, t_z] @ Q[:, t_x])
        for t_x in range(mask.shape[1]):
            may = [t_z for t_z in range(mask.shape[0]) if mask[t_z, t_x]]
            best = sorted((I[t_z, t_x] for t_z in may), reverse=True)[: indexer.k]
            mask = mask.copy()
            mask[:, t_x] = [t_z in may and I[t_z, t_x] >= best[-1] for t_z in range(mask.shape[0])]
    scaling = part(rotary, "scaling")
    scale = 1.0 if part(scaling, "scores") is None else (1 + 0.1 * scaling.scores * math.log(scaling.factor)) ** 2
    heads = []
    for h in range(len(W.W_q)):
        Q = np.concatenate([W.W_q[h] @ C_q, turned(W.W_qr[h] @ C_q, x_positions)])
        K, V = np.concatenate([W.W_k[h] @ C, K_r]), W.W_v[h] @ C
        columns = []
        for t_x in range(X.shape[1]):
            S = scale / math.sqrt(len(Q)) * (K.T @ Q[:, t_x])
            S = np.where(mask[:, t_x], S, -np.inf)
            columns.append(V @ softmax(S) if mask[:, t_x].any() else np.zeros(len(V), V.dtype))
        heads.append(np.stack(columns, axis=1))
    return np.asarray(W.W_o @ np.concatenate(heads))


def sigma(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def starts_of(mask: Array) -> list[bool]:
    """Return whether a document starts at each token: it may not attend to the one before it."""
    return [t == 0 or not mask[t - 1, t] for t in range(len(mask))]


def over_last(Y: Array, C: Array, b: Any, starts: Sequence[bool]) -> Array:
    """Return b and each row's sum over the last tokens of its document, weighted by C [d, width], [d, l]."""
    columns, width = [], C.shape[1]
    for t in range(Y.shape[1]):
        y, first = np.zeros(len(C)) + b, max(s for s in range(t + 1) if starts[s])
        for s in range(max(first, t - width + 1), t + 1):
            y = y + C[:, s - t + width - 1] * Y[:, s]
        columns.append(y)
    return np.stack(columns, axis=1)


def convolved(Y: Array, C: Array, b: Any, starts: Sequence[bool]) -> Array:
    """Return SiLU of `over_last`."""
    return silu(over_last(Y, C, b, starts))


def mamba2(X: Array, W: Any, mask: Array, line: Any) -> Array:
    """Return Mamba-2 (Dao and Gu 2024, sections 6 and 7; Granite 4), [d_e, l].

    In every head, S <- exp(-exp(a) Delta) S + B (Delta x)^T and y = S^T C + D x, token by token, with Delta =
    softplus(W_a X + b_a), but at least a smallest Delta (Nemotron-H); x, B and C come from a convolution with a bias over the last tokens of the document, and
    SiLU. S starts as 0 where a document does. The y of the heads that share B and C are multiplied by silu(W_z X), and
    normalized as one column, unless there is no norm. The projections to C, B, x, Delta and gate may have factors
    (Falcon-H1).

    `W`: W_q, W_k [H_k, d_k, d_e] of C and B, W_v [H, d_v, d_e] of x, C_q, C_k [H_k, d_k, width], C_v [H, d_v, width], b_q,
    b_k [H_k, d_k], b_v [H, d_v], W_z [H, d_v, d_e], W_a [H, d_e], b_a, a, D [H], gamma [H d_v], W_out [d_e, H d_v];
    `line`: norm, delta_min, factors of C, B, x, Delta and the gate.
    """
    H, H_k, l = len(W.W_v), len(W.W_q), X.shape[1]
    starts = starts_of(mask)
    groups: list[list[Array]] = [[] for _ in range(H_k)]
    c_C, c_B, c_x, c_delta, c_z = line.factors
    for h in range(H):
        g = h // (H // H_k)
        C = convolved(c_C * (W.W_q[g] @ X), W.C_q[g], W.b_q[g], starts)
        B = convolved(c_B * (W.W_k[g] @ X), W.C_k[g], W.b_k[g], starts)
        x, columns = convolved(c_x * (W.W_v[h] @ X), W.C_v[h], W.b_v[h], starts), []
        S = np.zeros((len(B), len(x)))
        for t in range(l):
            delta = max(np.log(1 + np.exp(c_delta * (W.W_a[h] @ X[:, t]) + W.b_a[h])), line.delta_min)
            S = (0 if starts[t] else np.exp(-np.exp(W.a[h]) * delta)) * S + np.outer(B[:, t], delta * x[:, t])
            columns.append((S.T @ C[:, t] + W.D[h] * x[:, t]) * silu(c_z * (W.W_z[h] @ X[:, t])))
        groups[g].append(np.stack(columns, axis=1))
    together = [np.concatenate(heads) for heads in groups]
    if line.norm is None:
        return np.asarray(W.W_out @ np.concatenate(together))
    normed = [Y / np.sqrt((Y * Y).sum(axis=0) / len(Y) + line.norm.epsilon) for Y in together]
    return np.asarray(W.W_out @ (W.gamma[:, None] * np.concatenate(normed)))


def gated_delta(X: Array, W: Any, mask: Array, line: Any) -> Array:
    """Return the gated delta rule (Yang et al. 2025, "Gated Delta Networks", equation 10; Qwen3-Next), [d_e, l].

    In every head S <- alpha S, then S <- S + beta k (v - S^T k)^T and o = S^T q, token by token, with alpha =
    exp(-exp(a) softplus(W_a x + b_a)) and beta = c sigma(W_b x), where c is 1, or 2 in OLMo Hybrid. S starts as 0 where a document does: at a token that may
    not attend to the one before it. Queries, keys and values come from a convolution over the last tokens of the
    document, and SiLU; queries and keys are divided by their lengths, and queries by sqrt(d_k). What is multiplied by
    the normalized o is silu(W_z x). With W_a2 W_a1 in place of W_a, every row of S has an alpha of its own, and that
    factor is sigma(W_z2 W_z1 x) (Kimi Team 2025, "Kimi Linear", equations 1 and 10).

    `W`: W_q, W_k [H_k, d_k, d_e], W_v [H, d_v, d_e], C_q, C_k [H_k, d_k, width], C_v [H, d_v, width], W_z [H, d_v, d_e],
    or W_z1 [r, d_e], W_z2 [H, d_v, r], W_b [H, d_e], W_a [H, d_e], b_a [H], or W_a1 [r, d_e], W_a2 [H, d_k, r], b_a [H,
    d_k]; a [H], gamma [d_v], W_out [d_e, H d_v]; `line`: norm of o, beta_factor, c.
    """
    H, H_k, l = len(W.W_v), len(W.W_q), X.shape[1]
    starts = starts_of(mask)

    def of_length_1(Y: Array) -> Array:
        return Y / np.sqrt((Y * Y).sum(axis=0) + 1e-6)

    heads = []
    for h in range(H):
        g = h // (H // H_k)
        Q, K = (of_length_1(convolved(M[g] @ X, C[g], 0.0, starts)) for M, C in ((W.W_q, W.C_q), (W.W_k, W.C_k)))
        V, columns = convolved(W.W_v[h] @ X, W.C_v[h], 0.0, starts), []
        S = np.zeros((len(K), len(V)))
        for t in range(l):
            rate = (W.W_a[h] if part(W, "W_a1") is None else W.W_a2[h] @ W.W_a1) @ X[:, t]
            alpha = np.exp(-np.exp(W.a[h]) * np.log(1 + np.exp(rate + W.b_a[h])))
            beta = line.beta_factor * sigma(W.W_b[h] @ X[:, t])
            S = 0 * S if starts[t] else np.reshape(alpha, (-1, 1)) * S
            S = S + np.outer(K[:, t], beta * (V[:, t] - S.T @ K[:, t]))
            o = S.T @ Q[:, t] / math.sqrt(len(Q))
            normed = o / np.sqrt((o * o).sum() / len(o) + line.norm.epsilon) * W.gamma
            is_low = part(W, "W_z1") is not None
            columns.append(normed * (sigma(W.W_z2[h] @ W.W_z1 @ X[:, t]) if is_low else silu(W.W_z[h] @ X[:, t])))
        heads.append(np.stack(columns, axis=1))
    return np.asarray(W.W_out @ np.concatenate(heads))


def rg_lru(X: Array, W: Any, mask: Array, line: Any = None) -> Array:
    """Return the real-gated linear recurrent unit (De et al. 2024, "Griffin", equations 1 to 4; RecurrentGemma), [d_e, l].

    In every group h <- alpha h + sqrt(1 - alpha^2) i u, token by token and row by row, where i = sigma(W_i u + b_i),
    alpha = exp(-8 sigma(W_r u + b_r) softplus(a)), and u is W_x X + b_x after a convolution with a bias over the last
    tokens of the document. At a document's first token h = i u. The result is W_out (h GELU_tanh(W_y X + b_y)) + b_out.

    `W`: W_x, W_y [N, d, d_e], C [N, d, width], W_i, W_r [N, d, d], b_x, b_y, b_c, b_i, b_r, a [N, d], W_out [d_e, N d],
    b_out [d_e].
    """
    groups, starts = [], starts_of(mask)
    for n in range(len(W.W_x)):
        rows, y, columns = linear(W.W_x[n], W.b_x[n], X), linear(W.W_y[n], W.b_y[n], X), []
        h = np.zeros(len(rows))
        for t, u in enumerate(over_last(rows, W.C[n], W.b_c[n], starts).T):
            alpha = np.exp(-8 * sigma(W.W_r[n] @ u + W.b_r[n]) * np.log(1 + np.exp(W.a[n])))
            new = sigma(W.W_i[n] @ u + W.b_i[n]) * u
            h = new if starts[t] else alpha * h + np.sqrt(1 - alpha**2) * new
            columns.append(h * gelu_tanh(y[:, t]))
        groups.append(np.stack(columns, axis=1))
    return linear(W.W_out, W.b_out, np.concatenate(groups))


def short_convolution(X: Array, W: Any, mask: Array, line: Any = None) -> Array:
    """Return a short convolution between two gates (Liquid AI 2025, "LFM2 Technical Report"; LFM 2), [d_e, l].

    u_t is the sum over the last tokens s of the document of C (W_i x_s + b_i) (W_x x_s + b_x), row by row, and b_c; the
    result W_out ((W_y x_t + b_y) u_t) + b_out.

    `W`: W_x, W_i, W_y [d, d_e], C [d, width], b_x?, b_i?, b_y?, b_c? [d], W_out [d_e, d], b_out? [d_e].
    """
    rows = linear(W.W_i, part(W, "b_i"), X) * linear(W.W_x, part(W, "b_x"), X)
    U = over_last(rows, W.C, 0.0 if part(W, "b_c") is None else W.b_c, starts_of(mask))
    return linear(W.W_out, part(W, "b_out"), linear(W.W_y, part(W, "b_y"), X) * U)


IN_PLACE_OF_HEADS = {
    "GatedDelta": gated_delta,
    "KimiDelta": gated_delta,
    "Mamba2": mamba2,
    "RGLRU": rg_lru,
    "ShortConvolution": short_convolution,
}
"""Names of mixers that are no attentions, each with its function of X, W, the mask and the line."""


def join_masks(
    base: Array,
    window: int | None = None,
    z_length: int | None = None,
    x_documents: Sequence[int] | None = None,
    z_documents: Sequence[int] | None = None,
    positions: Positions | None = None,
) -> Array:
    """Return which positions may attend to which, the algorithm's own mask and all others together, boolean [l_z, l_x].

    `base`: the algorithm's mask, or the caller's in its place; `window`: |t_x - t_z| < window; under the mask of
    equation (3) t_x - window < t_z <= t_x (Child et al. 2019 and GPT-3, document 004: locally banded; Mistral, Jiang et
    al. 2023), in an encoder both sides (Warner et al. 2024, "ModernBERT": 64 tokens on each); `z_length`:
    t_z < z_length; what follows is padding; `x_documents`, `z_documents`: number of the document of each t_x, t_z; a
    token attends within its own only; `positions`: of t_x and t_z, if a token attends only within its chunk, of as many
    positions as the window (Llama 4, Meta 2025).
    """
    l_z, l_x = base.shape
    joined = np.empty((l_z, l_x), dtype=bool)
    for t_z in range(l_z):
        for t_x in range(l_x):
            may = bool(base[t_z, t_x])
            if window is not None:
                may = may and abs(t_x - t_z) < window
            if z_length is not None:
                may = may and t_z < z_length
            if x_documents is not None and z_documents is not None:
                may = may and x_documents[t_x] == z_documents[t_z]
            if positions is not None and window is not None:
                may = may and positions[t_z] // window == positions[t_x] // window
            joined[t_z, t_x] = may
    return joined


def document_positions(documents: Sequence[int]) -> list[int]:
    """Return each token's position in its own document, from 0; a document is a run of equal numbers."""
    positions: list[int] = []
    for t in range(len(documents)):
        goes_on = t > 0 and documents[t] == documents[t - 1]
        positions.append(positions[t - 1] + 1 if goes_on else 0)
    return positions


def where_tokens_are(x: Tokens, positions: Positions | None, documents: Sequence[int] | None) -> Positions:
    """Return the positions given; or 0, 1, ... of the whole sequence x, or of each document."""
    if positions is not None:
        return positions
    return list(range(len(x))) if documents is None else document_positions(documents)
