"""Algorithms 8 to 10, with the lines that published models change.

`variant` is a record of lines: an `algorithms.Variant`, or any object with the same fields. None of its methods is
called; `in_turn` finds the line of a layer where layers take turns. A line with the attribute `own` is that function: of X, Z, W and the
mask in the place of Algorithm 5, of X and W in that of the MLP. Kinds of lines and positions are told by the names of
their classes.

What θ holds is not said again: a norm, bias, gate or matrix that is None or missing is not there. θ is what the paper's
algorithms in `transformers.py` take, and where there: embedding_norm, W_t [d, N_types], W_in [d_e, d_in] and b_in,
b_u [N_V], distances [H, num_buckets] (in Algorithm 8 encoder_distances, decoder_distances), context,
encoder_norm (8 and 9) and decoder_norm (8), norm (9 and 10), W_f and b_f (9); in an attention or mlp norm_out; in an mlp
W_gate and b_gate; in an attention groups, gamma_q, gamma_k, W_r, u and v: see `lines.mh_attention`.
`parameters.unstack` makes all this from stacked parameters.

Arguments that no function explains: `z`, `x`: context and primary sequence, token IDs; `positions` [l]: of the tokens;
counted, in each document, unless given; `mask`: in place of the algorithm's own, boolean [l_z, l_x]; `length`,
`z_length`: what follows is padding; `documents`, `z_documents`, `x_documents`: number of each token's document;
`types`: of the tokens; 0 unless given; only read where theta has W_t. Logits and P are [N_V, l].
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from .components import Array, Tokens, positional_embedding, softmax, token_embedding
from .lines import (
    ACTIVATIONS,
    across,
    after,
    before,
    cap,
    feed_forward,
    join_masks,
    linear,
    mh_attention,
    normalize,
    part,
    rms_columns,
    where_tokens_are,
)
from .positions import Positions, sinusoid
from .transformers import causal_mask, ones_mask


def in_bfloat16(x: float) -> float:
    """Return x rounded to the 8 significant bits of bfloat16, to even."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(mantissa * 256) / 256, exponent)


def in_turn(lines: Any, l: int) -> Any:
    """Return the line of layer l, from 0: of p lines, a tuple, l mod p; the line itself if there is one."""
    return lines[l % len(lines)] if isinstance(lines, tuple) else lines


def embed(x: Tokens, theta: Any, variant: Any, positions: Positions, types: Tokens | None) -> list[Array]:
    """Return line 2 of Algorithms 9 and 10, which is also line 11 of Algorithm 8.

    e_t = s W_e[:, x[t]] + W_p[:, first + p_t] + W_t[:, type_t], then the embedding's norm, then W_in e_t + b_in. Sources:
    s: Vaswani et al. 2017, section 3.4, Gemma, RecurrentGemma (rounded to bfloat16); first: RoBERTa and OPT (2); types
    and norm: Devlin et al. 2019; W_in: Lan et al. 2020, section 3.1. Result: e_1, ..., e_l [d_e].
    """
    e, l = variant.embedding, len(x)
    W_in, W_t = part(theta, "W_in"), part(theta, "W_t")
    root = math.sqrt(theta.W_e.shape[0])
    s = {True: root, "bfloat16": in_bfloat16(root)}.get(e.scaled, e.factor)
    X = np.stack([s * token_embedding(x[t], theta.W_e) for t in range(l)], axis=1)
    d, at = X.shape[0], [e.first_position + positions[t] for t in range(l)]
    if e.positions == "learned":
        X = X + np.stack([positional_embedding(t, theta.W_p) for t in at], axis=1)
    elif e.positions is not None:
        rows = {"sinusoidal": "neighbors", "sinusoidal_halves": "halves"}[e.positions]
        X = X + np.stack([sinusoid(t, d, 10_000.0, rows) for t in at], axis=1)
    if W_t is not None:
        X = X + np.stack([W_t[:, 0 if types is None else types[t]] for t in range(l)], axis=1)
    X = normalize(X, part(theta, "embedding_norm"), variant.norm)
    if W_in is not None:
        X = linear(W_in, part(theta, "b_in"), X)
    return list(X.T)


def through_layers(
    X: Array,
    own: Sequence[Any],
    variant: Any,
    base: Array,
    order: str,
    f: Any,
    bidirectional: bool,
    *,
    positions: Positions,
    length: int | None,
    documents: Sequence[int] | None,
    distances: Array | None,
    inputs: list[Array] | None = None,
) -> Array:
    """Return the loop over layers of Algorithms 9 and 10 and of the encoder of 8, [d_e, l].

    side_by_side: X + Attention(norm1 X) + MLP(norm2 X) (GPT-NeoX, Black et al. 2022, section 2.1); one_norm: both read
    norm1 X (GPT-J; Cohere's Command R). A layer without mlp has attention only (document 001).

    `own`: parameters of the layers that have some of their own; `base`: the mask, before windows, padding and documents;
    `order`, `f`: the algorithm's own, where the variant has none; `bidirectional`: which of T5's buckets apply;
    `distances`: T5's tables [H, num_buckets]; `inputs`: of every layer, see `layer_inputs`.
    """
    own_order, s, norm = order, variant.residual_factor, variant.norm
    where = {"x_positions": positions, "z_positions": positions, "bidirectional": bidirectional, "distances": distances}
    kept: list[Any] = []
    for l in range(variant.shared_layers * len(own)):  # line 4
        W, line, order = own[l // variant.shared_layers], in_turn(variant.attention, l), in_turn(variant.order, l)
        m = variant.first[l] if l < len(variant.first) else in_turn(variant.mlp, l)
        W_mlp, order = part(W, "mlp"), order or own_order
        chunks = positions if part(line, "chunked") else None
        mask = join_masks(base, part(line, "window"), length, documents, documents, chunks)

        def attention(X: Array, W: Any = W.attention, mask: Array = mask, line: Any = line, l: int = l) -> Array:
            kept.append({})
            keys = kept[l if part(line, "keys_of") is None else line.keys_of]
            Y = mh_attention(X, X, W, mask, line, **where, keys=keys)
            return s * normalize(Y, part(W, "norm_out"), part(line, "normalize_output"))

        def mlp(X: Array, W: Any = W_mlp, m: Any = m) -> Array:
            if W is None:
                return np.zeros_like(X)
            return s * normalize(feed_forward(X, W, m, f), part(W, "norm_out"), part(m, "normalize_output"))

        norm1, norm2 = part(W, "norm1"), None if W_mlp is None else part(W, "norm2")
        if order in ("side_by_side", "one_norm"):
            X_tilde = normalize(X, norm1, norm)  # line 5
            Y = attention(X_tilde)  # line 6
            X_tilde = X_tilde if order == "one_norm" else normalize(X, norm2, norm)  # line 7
            X = X + Y + mlp(X_tilde)  # line 8
        else:
            X_tilde = before(X, norm1, order, norm)  # line 5 of Algorithm 10
            X = X + attention(X_tilde)  # line 5; line 6 of Algorithm 10
            X = after(X, norm1, order, norm)  # line 6 of Algorithm 8; line 6 of Algorithm 9
            X_tilde = before(X, norm2, order, norm)  # line 7 of Algorithm 10
            X = X + mlp(X_tilde)  # line 7; line 8 of Algorithm 10
            X = after(X, norm2, order, norm)  # line 8 of Algorithm 8; line 8 of Algorithm 9
        X = end_of_layer(X, part(W, "end"), part(variant, "layer_end"), None if inputs is None else inputs[l])
    return X


def layer_inputs(x: Tokens, X: Array, W: Any, line: Any) -> list[Array] | None:
    """Return the input of every layer [d, l], of tokens x and their embeddings X; None where theta has no parameters.

    (norm(W_l X / sqrt(d_e)) + sqrt(d) W_e[:, x]) / sqrt(2), with the layer's d rows of W_l and W_e (Gemma 3n and 4).
    """
    if W is None:
        return None
    found = []
    for first in range(0, len(W.W_l), line.d):
        rows = slice(first, first + line.d)
        E = math.sqrt(line.d) * W.W_e[rows][:, list(x)]
        found.append(
            (rms_columns(W.W_l[rows] @ X / math.sqrt(len(X)), W.norm.gamma, line.norm.epsilon) + E) / math.sqrt(2)
        )
    return found


def end_of_layer(X: Array, W: Any, line: Any, P: Array | None) -> Array:
    """Return s (X + norm(W_o (f(W_gate X) * P))), or s X without an input P (Gemma 4); X where there is no W."""
    if W is None:
        return X
    if P is not None:
        Y = W.W_o @ (ACTIVATIONS[line.activation](W.W_gate @ X) * P)
        X = X + rms_columns(Y, W.norm_out.gamma, line.norm.epsilon)
    return W.s * X


def project(X: Array, theta: Any, f: Any) -> Array:
    """Return line 10 of Algorithm 9, f(W_f X + b_f); X where theta has no W_f."""
    return X if part(theta, "W_f") is None else f(linear(theta.W_f, part(theta, "b_f"), X))


def unembed(X: Array, theta: Any, variant: Any) -> Array:
    """Return the logits of Algorithm 7: cap(s W_u X + b_u), W_u = W_e^T where theta has none.

    Sources: b_u: Devlin et al. 2019 and document 003, section 12.3.4; s: T5, d_e^(-1/2) where tied;
    cap: Gemma 2.
    """
    u, W_u = variant.unembedding, part(theta, "W_u")
    s = 1 / math.sqrt(X.shape[0]) if u.tied and u.scaled else u.factor
    return cap(linear(s * (theta.W_e.T if W_u is None else W_u), part(theta, "b_u"), X), u.cap)


def d_hidden_state(
    x: Tokens,
    theta: Any,
    variant: Any,
    *,
    positions: Positions | None = None,
    mask: Array | None = None,
    length: int | None = None,
    documents: Sequence[int] | None = None,
) -> Array:
    """Return lines 1 to 10 of Algorithm 10, [d_e, l]; with W_f and norm_f (Ettin), lines 10 and 11 of Algorithm 9 follow.

    `theta`: W_e, W_p?, layers (norm1?, attention, norm2?, mlp?), norm?, W_u?.
    """
    positions = where_tokens_are(x, positions, documents)
    l = len(x)  # line 1
    e = embed(x, theta, variant, positions, None)  # line 2
    X = np.stack(e, axis=1)  # line 3
    base = causal_mask(l) if mask is None else mask
    where: dict[str, Any] = {"positions": positions, "length": length, "documents": documents}
    where["inputs"] = layer_inputs(x, X, part(theta, "layer_inputs"), part(variant, "layer_end"))
    return decoded(X, theta, variant, base, **where)  # line 10


def decoded(X: Array, theta: Any, variant: Any, base: Array, **where: Any) -> Array:
    """Return lines 4 to 10 of Algorithm 10."""
    T5 = {"distances": part(theta, "distances")}
    X = through_layers(X, theta.layers, variant, base, "norm_first", ACTIVATIONS["gelu"], False, **where, **T5)
    X = normalize(X, part(theta, "norm"), variant.norm)
    X = project(X, theta, ACTIVATIONS[part(in_turn(variant.mlp, 0), "activation") or "gelu"])
    return normalize(X, part(theta, "norm_f"), variant.norm)


def d_logits(x: Tokens, theta: Any, variant: Any, **where: Any) -> Array:
    """Return Algorithm 10 up to its softmax; the arguments are those of `d_hidden_state`."""
    return unembed(d_hidden_state(x, theta, variant, **where), theta, variant)


def mtp_losses(
    x: Tokens, theta: Any, variant: Any, *, length: int | None = None, documents: Sequence[int] | None = None
) -> list[Any]:
    """Return -log P[x[t + 2], t] of the head for the token after the next; 0 where t has no two tokens more.

    h'_t = W_m [norm(e[t + 1]); norm(h_t)] goes through a layer like the last one, a norm and W_u, where h is the hidden
    state of Algorithm 10. Source: DeepSeek-V3 (DeepSeek-AI 2024), equations 21 to 24. `theta`: mtp (norm_e, norm_x,
    W_m [d_e, 2 d_e], layers (one), norm?).
    """
    n, head = len(x) if length is None else length, theta.mtp
    positions = where_tokens_are(x, None, documents)[: n - 1]
    h = d_hidden_state(x[:n], theta, variant, documents=documents and documents[:n])[:, : n - 1]
    e = np.stack(embed(x[1:n], theta, variant, positions, None), axis=1)
    both = np.concatenate([normalize(e, head.norm_e, variant.norm), normalize(h, head.norm_x, variant.norm)])
    fields = ("attention", "mlp", "order")
    lengths = [len(lines) for lines in (getattr(variant, name) for name in fields) if isinstance(lines, tuple)]
    last = max(len(variant.first), int(not variant.first_norm)) + math.lcm(*lengths) - 1
    one = {name: in_turn(getattr(variant, name), last) for name in fields}
    block = SimpleNamespace(**vars(variant) | one | {"first": (), "shared_layers": 1})
    of = SimpleNamespace(**vars(theta) | {"layers": head.layers, "norm": head.norm})
    where = {"positions": positions, "length": None, "documents": documents and documents[: n - 1]}
    logits = unembed(decoded(head.W_m @ both, of, block, causal_mask(n - 1), **where), theta, variant)

    def in_document(t: int) -> bool:
        return t + 2 < n and (documents is None or documents[t] == documents[t + 1] == documents[t + 2])

    return [-np.log(softmax(logits[:, t])[x[t + 2]]) if in_document(t) else 0.0 for t in range(len(x))]


def d_transformer(x: Tokens, theta: Any, variant: Any, **where: Any) -> Array:
    """Return Algorithm 10: softmax of `d_logits`, which takes the further arguments `where`."""
    P: Array = softmax(d_logits(x, theta, variant, **where))  # return
    return P


def e_logits(
    x: Tokens,
    theta: Any,
    variant: Any,
    *,
    types: Tokens | None = None,
    positions: Positions | None = None,
    mask: Array | None = None,
    length: int | None = None,
    documents: Sequence[int] | None = None,
) -> Array:
    """Return Algorithm 9 up to its softmax.

    `theta`: W_e, W_p?, layers (attention, norm1?, mlp?, norm2?), W_f?, b_f?, norm?, W_u?.
    """
    positions = where_tokens_are(x, positions, documents)
    l = len(x)  # line 1
    e = embed(x, theta, variant, positions, types)  # line 2
    X = np.stack(e, axis=1)  # line 3
    base = ones_mask(l, l) if mask is None else mask
    f = ACTIVATIONS[part(in_turn(variant.mlp, 0), "activation") or "gelu"]
    where = {"positions": positions, "length": length, "documents": documents}
    T5 = {"distances": part(theta, "distances")}
    X = through_layers(X, theta.layers, variant, base, "norm_last", f, True, **where, **T5)
    X = normalize(X, part(theta, "encoder_norm"), variant.norm)  # line 9: not in the paper
    X = project(X, theta, f)  # line 10
    X = normalize(X, part(theta, "norm"), variant.norm)  # line 11
    return unembed(X, theta, variant)


def e_transformer(x: Tokens, theta: Any, variant: Any, **where: Any) -> Array:
    """Return Algorithm 9: softmax of `e_logits`, which takes the further arguments `where`."""
    P: Array = softmax(e_logits(x, theta, variant, **where))  # return
    return P


def decode(
    X: Array, Z: Array, theta: Any, variant: Any, masks: Any, x_positions: Positions, z_positions: Positions
) -> Array:
    """Return lines 13 to 20 of Algorithm 8; cross-attention has no window (T5Gemma) and no positions (T5).

    `Z`: the encoder's output; `masks`: function of a line's window, and of the positions if it has chunks, that returns
    the masks of self-attention and cross-attention.
    """
    s, norm, table = variant.residual_factor, variant.norm, part(theta, "decoder_distances")
    here = {"x_positions": x_positions, "z_positions": x_positions, "bidirectional": False, "distances": table}
    there = {"x_positions": x_positions, "z_positions": z_positions, "bidirectional": True}
    for l, W in enumerate(theta.decoder):  # line 13
        line, m = in_turn(variant.attention, l), in_turn(variant.mlp, l)
        order, of_output = in_turn(variant.order, l) or "norm_last", part(line, "normalize_output")
        self_mask, cross_mask = masks(part(line, "window"), x_positions if part(line, "chunked") else None)
        norm3, norm4, norm5 = (part(W, f"norm{i}") for i in (3, 4, 5))
        X_tilde = before(X, norm3, order, norm)
        Y = mh_attention(X_tilde, X_tilde, W.self_attention, self_mask, line, **here)
        X = X + s * normalize(Y, part(W.self_attention, "norm_out"), of_output)  # line 14
        X = after(X, norm3, order, norm)  # line 15
        Y = mh_attention(before(X, norm4, order, norm), Z, W.cross_attention, cross_mask, across(line), **there)
        X = X + s * normalize(Y, part(W.cross_attention, "norm_out"), of_output)  # line 16
        X = after(X, norm4, order, norm)  # line 17
        if part(W, "mlp") is not None:
            Y = feed_forward(before(X, norm5, order, norm), W.mlp, m, ACTIVATIONS["relu"])
            X = X + s * normalize(Y, part(W.mlp, "norm_out"), part(m, "normalize_output"))  # line 18
            X = after(X, norm5, order, norm)  # line 19
    X = normalize(X, part(theta, "decoder_norm"), norm)  # line 20: not in the paper
    return X


def of_context(theta: Any) -> Any:
    """Return theta with what embeds the context of Algorithm 8 in place of what embeds the primary sequence.

    Sources: positions and norm of the embeddings: BART (Lewis et al. 2019); W_e: Marian (Junczys-Dowmunt et al. 2018).
    """
    return SimpleNamespace(**vars(theta) | {name: W for name, W in vars(theta.context).items() if W is not None})


def ed_logits(
    z: Tokens,
    x: Tokens,
    theta: Any,
    variant: Any,
    *,
    z_mask: Array | None = None,
    mask: Array | None = None,
    z_length: int | None = None,
    z_documents: Sequence[int] | None = None,
    x_documents: Sequence[int] | None = None,
) -> Array:
    """Return Algorithm 8 up to its softmax; `z_mask`, `mask`: in place of the masks of lines 5 and 14.

    `theta`: W_e, W_p?, encoder (attention, norm1?, mlp, norm2?), decoder (self_attention, norm3?, cross_attention,
    norm4?, mlp, norm5?), W_u?.
    """
    z_positions = where_tokens_are(z, None, z_documents)
    x_positions = where_tokens_are(x, None, x_documents)
    context = theta if part(theta, "context") is None else of_context(theta)
    l_z = len(z)  # line 1
    e = embed(z, context, variant, z_positions, None)  # line 2
    Z = np.stack(e, axis=1)  # line 3
    where = {"positions": z_positions, "length": z_length, "documents": z_documents}
    T5 = {"distances": part(theta, "encoder_distances")}
    base = ones_mask(l_z, l_z) if z_mask is None else z_mask
    Z = through_layers(Z, theta.encoder, variant, base, "norm_last", ACTIVATIONS["relu"], True, **where, **T5)
    Z = normalize(Z, part(theta, "encoder_norm"), variant.norm)  # line 9: not in the paper

    def masks(window: int | None, chunks: Positions | None) -> tuple[Array, Array]:
        base = causal_mask(l_x) if mask is None else mask
        within = join_masks(base, window, None, x_documents, x_documents, chunks)
        return within, join_masks(ones_mask(l_z, l_x), None, z_length, x_documents, z_documents)

    l_x = len(x)  # line 10
    e = embed(x, theta, variant, x_positions, None)  # line 11
    X = np.stack(e, axis=1)  # line 12
    X = decode(X, Z, theta, variant, masks, x_positions, z_positions)
    return unembed(X, theta, variant)


def ed_transformer(z: Tokens, x: Tokens, theta: Any, variant: Any, **where: Any) -> Array:
    """Return Algorithm 8: softmax of `ed_logits`, which takes the further arguments `where`."""
    P: Array = softmax(ed_logits(z, x, theta, variant, **where))  # return
    return P


TRANSFORMERS = {8: ed_transformer, 9: e_transformer, 10: d_transformer}
"""Number of an algorithm → its function."""
