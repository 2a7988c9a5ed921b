"""Algorithms 8 to 10, with the lines that published models change.

A model is a mapping of options. `PAPER` lists them all, with the paper's own values; {**PAPER, ...} is another model:

    positions        line 2, added to embeddings: {"kind": "learned", "first": 0}: W_p, the first token reads column
                     "first"; {"kind": "sinusoidal", "base", "rows": see `sinusoid`, "first"}; None
    embedding_scale  line 2: what multiplies a token's embedding; "sqrt_d_e" for the root of the embedding's rows,
                     "sqrt_d_e_bfloat16" for that rounded to the 8 significant bits of bfloat16 (RecurrentGemma)
    norm             "layer_norm" or "rms_norm"
    epsilon          what norms add to the variance, or to the mean square
    norm_offset      what "rms_norm" adds to gamma
    order            "norm_first", "norm_last", "side_by_side", "one_norm"; None: the algorithm's own (last in 8 and 9,
                     first in 10); or a list, taken in turn as "attention" is (OLMo Hybrid), as may be activation, clip
                     and experts
    activation       "relu", "relu_squared", "gelu", "gelu_tanh", "gelu_sigmoid", "silu"; None: the algorithm's own (ReLU in 8, GELU in
                     9 and 10)
    attention        a list of lines {"positions", "window", "chunked", "scale", "cap", "clip"}, taken in turn, by layer l
                     (from 0) line l mod p; what is None or missing is the paper's. "positions": {"kind": "rotary",
                     "base", "share", "pairs", "scaling"}, {"kind": "transformer_xl", "base"}, {"kind": "distances",
                     "num_buckets", "max_distance"}, {"kind": "temperature", "c", "n", "first"} or {"kind": "alibi"}
    clip             c of gpt-oss's gate, see `mlp`; None: none
    experts          what a token's choice of experts depends on, see `weights_of_experts`; None: there is one MLP
    residual_scale   what multiplies what a sublayer adds to X (Granite)
    L                number of layers where some share parameters: layer l has theta.layers[l len(theta.layers) // L]
    logit_scale      what multiplies W_u X (Cohere); "rsqrt_d_e" for 1 / sqrt(d_e) (T5, tied)
    logit_cap        c in c tanh(logits / c)
    own_mlp          not in PAPER: a function of X and W in place of the MLP

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

import functools
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from .components import Array, Tokens, positional_embedding, softmax, token_embedding
from .lines import (
    ACTIVATIONS,
    after,
    before,
    cap,
    experts,
    join_masks,
    linear,
    mh_attention,
    mlp,
    normalize,
    part,
    where_tokens_are,
)
from .positions import Positions, sinusoid
from .transformers import causal_mask, ones_mask

Model = Mapping[str, Any]

PAPER: Model = {
    "positions": {"kind": "learned", "first": 0},
    "embedding_scale": 1.0,
    "norm": "layer_norm",
    "epsilon": 0.0,
    "norm_offset": 0.0,
    "order": None,
    "activation": None,
    "attention": [{"positions": None, "window": None, "scale": None, "cap": None, "clip": None}],
    "clip": None,
    "experts": None,
    "residual_scale": 1.0,
    "L": None,
    "logit_scale": 1.0,
    "logit_cap": None,
}


IN_TURN = "order", "activation", "clip", "experts", "own_mlp"
"""Options that may be lists: layer l, counted from 0, has entry l mod p of a list with p entries."""


def in_bfloat16(x: float) -> float:
    """Return x rounded to the 8 significant bits of bfloat16, to even."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(mantissa * 256) / 256, exponent)


def embed(x: Tokens, theta: Any, model: Model, positions: Positions, types: Tokens | None) -> list[Array]:
    """Return line 2 of Algorithms 9 and 10, which is also line 11 of Algorithm 8.

    e_t = s W_e[:, x[t]] + W_p[:, first + p_t] + W_t[:, type_t], then the embedding's norm, then W_in e_t + b_in. Sources:
    s: Vaswani et al. 2017, section 3.4, Gemma; first: RoBERTa and OPT (2); types and norm: Devlin et al. 2019; W_in: Lan
    et al. 2020, section 3.1. Result: e_1, ..., e_l [d_e].
    """
    rule: Model = model["positions"] or {"kind": None}
    root = math.sqrt(theta.W_e.shape[0])
    s = {"sqrt_d_e": root, "sqrt_d_e_bfloat16": in_bfloat16(root)}.get(
        model["embedding_scale"], model["embedding_scale"]
    )
    W_in, W_t, l = part(theta, "W_in"), part(theta, "W_t"), len(x)
    X = np.stack([s * token_embedding(x[t], theta.W_e) for t in range(l)], axis=1)
    d = X.shape[0]
    P = None
    if rule["kind"] == "learned":
        first = rule.get("first", 0)
        P = np.stack([positional_embedding(first + positions[t], theta.W_p) for t in range(l)], axis=1)
    elif rule["kind"] == "sinusoidal":
        first, base = rule.get("first", 0), rule.get("base", 10_000.0)
        P = np.stack([sinusoid(first + positions[t], d, base, rule["rows"]) for t in range(l)], axis=1)
    X = X if P is None else X + P
    if W_t is not None:
        X = X + np.stack([W_t[:, 0 if types is None else types[t]] for t in range(l)], axis=1)
    X = normalize(X, part(theta, "embedding_norm"), model)
    if W_in is not None:
        X = linear(W_in, part(theta, "b_in"), X)
    return list(X.T)


def of_layer(model: Model, l: int) -> Model:
    """Return the model with what layer l has of the options that may be lists."""
    lists = {name: model[name] for name in IN_TURN if isinstance(model.get(name), list)}
    return {**model, **{name: each[l % len(each)] for name, each in lists.items()}}


def mlp_of(model: Model, f: Any, W: Any) -> Any:
    """Return the model's MLP, or what it has in its place, as a function of X and W, the layer's parameters.

    In a model with experts, a layer whose MLP has no router W_r has none (DeepSeek's first layers).
    """
    if model.get("own_mlp") is not None:
        return model["own_mlp"]
    if model["experts"] is not None and part(W, "W_r") is not None:
        return functools.partial(experts, f=f, line=model["experts"], clip=model["clip"])
    return functools.partial(mlp, f=f, clip=model["clip"])


def through_layers(
    X: Array,
    own: Sequence[Any],
    model: Model,
    base: Array,
    order: str,
    f: Any,
    bidirectional: bool,
    *,
    positions: Positions,
    length: int | None,
    documents: Sequence[int] | None,
    distances: Array | None,
) -> Array:
    """Return the loop over layers of Algorithms 9 and 10 and of the encoder of 8, [d_e, l].

    side_by_side: X + Attention(norm1 X) + MLP(norm2 X) (GPT-NeoX, Black et al. 2022, section 2.1); one_norm: both read
    norm1 X (GPT-J; Cohere's Command R). A layer without mlp
    has attention only (document 001).

    `own`: parameters of the layers that have some of their own; see option L; `base`: the mask, before windows, padding
    and documents; `order`, `f`: the algorithm's own, where the model has none; `bidirectional`: which of T5's buckets
    apply; `distances`: T5's tables [H, num_buckets].
    """
    L, model_of_all, own_order, own_f = model["L"] or len(own), model, order, f
    for l in range(L):  # line 4
        W, model = own[l * len(own) // L], of_layer(model_of_all, l)
        order = model["order"] or own_order
        f = ACTIVATIONS[model["activation"]] if model["activation"] else own_f
        line = model["attention"][l % len(model["attention"])]
        chunks = positions if line.get("chunked") else None
        mask = join_masks(base, line.get("window"), length, documents, documents, chunks)

        def attention(X: Array, W: Any = W, mask: Array = mask, line: Any = line, model: Model = model) -> Array:
            where = {"x_positions": positions, "z_positions": positions, "bidirectional": bidirectional}
            Y = mh_attention(X, X, W.attention, mask, line, model, **where, distances=distances)
            return model["residual_scale"] * normalize(Y, part(W.attention, "norm_out"), model)

        def feed_forward(X: Array, W: Any = W, model: Model = model, f: Any = f) -> Array:
            if part(W, "mlp") is None:
                return np.zeros_like(X)
            own = mlp_of(model, f, W.mlp)
            return model["residual_scale"] * normalize(own(X, W.mlp), part(W.mlp, "norm_out"), model)

        norm1 = part(W, "norm1")
        norm2 = part(W, "norm2") if part(W, "mlp") is not None else None
        if order in ("side_by_side", "one_norm"):
            X_tilde = normalize(X, norm1, model)  # line 5
            Y = attention(X_tilde)  # line 6
            X_tilde = X_tilde if order == "one_norm" else normalize(X, norm2, model)  # line 7
            X = X + Y + feed_forward(X_tilde)  # line 8
        else:
            X_tilde = before(X, norm1, order, model)  # line 5 of Algorithm 10
            X = X + attention(X_tilde)  # line 5; line 6 of Algorithm 10
            X = after(X, norm1, order, model)  # line 6 of Algorithm 8; line 6 of Algorithm 9
            X_tilde = before(X, norm2, order, model)  # line 7 of Algorithm 10
            X = X + feed_forward(X_tilde)  # line 7; line 8 of Algorithm 10
            X = after(X, norm2, order, model)  # line 8 of Algorithm 8; line 8 of Algorithm 9
    return X


def unembed(X: Array, theta: Any, model: Model) -> Array:
    """Return the logits of Algorithm 7: cap(s W_u X + b_u), W_u = W_e^T where theta has none.

    Sources: b_u: Devlin et al. 2019 and document 003, section 12.3.4; s: T5, d_e^(-1/2) where tied;
    cap: Gemma 2.
    """
    s = 1 / math.sqrt(X.shape[0]) if model["logit_scale"] == "rsqrt_d_e" else model["logit_scale"]
    W_u = part(theta, "W_u")
    return cap(linear(s * (theta.W_e.T if W_u is None else W_u), part(theta, "b_u"), X), model["logit_cap"])


def d_logits(
    x: Tokens,
    theta: Any,
    model: Model = PAPER,
    *,
    positions: Positions | None = None,
    mask: Array | None = None,
    length: int | None = None,
    documents: Sequence[int] | None = None,
) -> Array:
    """Return Algorithm 10 up to its softmax.

    `theta`: W_e, W_p?, layers (norm1?, attention, norm2?, mlp?), norm?, W_u?, and what the options add.
    """
    positions = where_tokens_are(x, positions, documents)
    l = len(x)  # line 1
    e = embed(x, theta, model, positions, None)  # line 2
    X = np.stack(e, axis=1)  # line 3
    base = causal_mask(l) if mask is None else mask
    where = {"positions": positions, "length": length, "documents": documents}
    T5 = {"distances": part(theta, "distances")}
    X = through_layers(X, theta.layers, model, base, "norm_first", ACTIVATIONS["gelu"], False, **where, **T5)
    X = normalize(X, part(theta, "norm"), model)  # line 10
    return unembed(X, theta, model)


def d_transformer(x: Tokens, theta: Any, model: Model = PAPER, **where: Any) -> Array:
    """Return Algorithm 10: softmax of `d_logits`, which takes the further arguments `where`."""
    P: Array = softmax(d_logits(x, theta, model, **where))  # return
    return P


def e_logits(
    x: Tokens,
    theta: Any,
    model: Model = PAPER,
    *,
    types: Tokens | None = None,
    positions: Positions | None = None,
    mask: Array | None = None,
    length: int | None = None,
    documents: Sequence[int] | None = None,
) -> Array:
    """Return Algorithm 9 up to its softmax.

    `theta`: W_e, W_p?, layers (attention, norm1?, mlp?, norm2?), W_f?, b_f?, norm?, W_u?, and what the options add.
    """
    positions = where_tokens_are(x, positions, documents)
    l = len(x)  # line 1
    e = embed(x, theta, model, positions, types)  # line 2
    X = np.stack(e, axis=1)  # line 3
    base = ones_mask(l, l) if mask is None else mask
    f = ACTIVATIONS[of_layer(model, 0)["activation"] or "gelu"]
    where = {"positions": positions, "length": length, "documents": documents}
    T5 = {"distances": part(theta, "distances")}
    X = through_layers(X, theta.layers, model, base, "norm_last", f, True, **where, **T5)
    X = normalize(X, part(theta, "encoder_norm"), model)  # line 9: not in the paper
    X = X if part(theta, "W_f") is None else f(linear(theta.W_f, part(theta, "b_f"), X))  # line 10
    X = normalize(X, part(theta, "norm"), model)  # line 11
    return unembed(X, theta, model)


def e_transformer(x: Tokens, theta: Any, model: Model = PAPER, **where: Any) -> Array:
    """Return Algorithm 9: softmax of `e_logits`, which takes the further arguments `where`."""
    P: Array = softmax(e_logits(x, theta, model, **where))  # return
    return P


def decode(
    X: Array, Z: Array, theta: Any, model: Model, masks: Any, x_positions: Positions, z_positions: Positions
) -> Array:
    """Return lines 13 to 20 of Algorithm 8; cross-attention has no window (T5Gemma) and no positions (T5).

    `Z`: the encoder's output; `masks`: function of a line's window, and of the positions if it has chunks, that returns
    the masks of self-attention and cross-attention.
    """
    model_of_all, s = model, model["residual_scale"]
    for l, W in enumerate(theta.decoder):  # line 13
        model = of_layer(model_of_all, l)
        order, f = model["order"] or "norm_last", ACTIVATIONS[model["activation"] or "relu"]
        line = model["attention"][l % len(model["attention"])]
        across = {name: line.get(name) for name in ("scale", "cap", "clip")}
        across |= {"own": line["own_across"]} if "own_across" in line else {}
        self_mask, cross_mask = masks(line.get("window"), x_positions if line.get("chunked") else None)
        table = part(theta, "decoder_distances")
        norm3, norm4, norm5 = part(W, "norm3"), part(W, "norm4"), part(W, "norm5")
        here = {"x_positions": x_positions, "z_positions": x_positions, "bidirectional": False, "distances": table}
        there = {"x_positions": x_positions, "z_positions": z_positions, "bidirectional": True}
        X_tilde = before(X, norm3, order, model)
        Y = mh_attention(X_tilde, X_tilde, W.self_attention, self_mask, line, model, **here)
        X = X + s * normalize(Y, part(W.self_attention, "norm_out"), model)  # line 14
        X = after(X, norm3, order, model)  # line 15
        Y = mh_attention(before(X, norm4, order, model), Z, W.cross_attention, cross_mask, across, model, **there)
        X = X + s * normalize(Y, part(W.cross_attention, "norm_out"), model)  # line 16
        X = after(X, norm4, order, model)  # line 17
        if part(W, "mlp") is not None:
            own = mlp_of(model, f, W.mlp)
            Y = own(before(X, norm5, order, model), W.mlp)
            X = X + s * normalize(Y, part(W.mlp, "norm_out"), model)  # line 18
            X = after(X, norm5, order, model)  # line 19
    X = normalize(X, part(theta, "decoder_norm"), model)  # line 20: not in the paper
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
    model: Model = PAPER,
    *,
    z_mask: Array | None = None,
    mask: Array | None = None,
    z_length: int | None = None,
    z_documents: Sequence[int] | None = None,
    x_documents: Sequence[int] | None = None,
) -> Array:
    """Return Algorithm 8 up to its softmax; `z_mask`, `mask`: in place of the masks of lines 5 and 14.

    `theta`: W_e, W_p?, encoder (attention, norm1?, mlp, norm2?), decoder (self_attention, norm3?, cross_attention,
    norm4?, mlp, norm5?), W_u?, and what the options add; `model`: L is not for this algorithm.
    """
    z_positions = where_tokens_are(z, None, z_documents)
    x_positions = where_tokens_are(x, None, x_documents)
    context = theta if part(theta, "context") is None else of_context(theta)
    l_z = len(z)  # line 1
    e = embed(z, context, model, z_positions, None)  # line 2
    Z = np.stack(e, axis=1)  # line 3
    where = {"positions": z_positions, "length": z_length, "documents": z_documents}
    T5 = {"distances": part(theta, "encoder_distances")}
    base = ones_mask(l_z, l_z) if z_mask is None else z_mask
    Z = through_layers(Z, theta.encoder, model, base, "norm_last", ACTIVATIONS["relu"], True, **where, **T5)
    Z = normalize(Z, part(theta, "encoder_norm"), model)  # line 9: not in the paper

    def masks(window: int | None, chunks: Positions | None) -> tuple[Array, Array]:
        base = causal_mask(l_x) if mask is None else mask
        within = join_masks(base, window, None, x_documents, x_documents, chunks)
        return within, join_masks(ones_mask(l_z, l_x), None, z_length, x_documents, z_documents)

    l_x = len(x)  # line 10
    e = embed(x, theta, model, x_positions, None)  # line 11
    X = np.stack(e, axis=1)  # line 12
    X = decode(X, Z, theta, model, masks, x_positions, z_positions)
    return unembed(X, theta, model)


def ed_transformer(z: Tokens, x: Tokens, theta: Any, model: Model = PAPER, **where: Any) -> Array:
    """Return Algorithm 8: softmax of `ed_logits`, which takes the further arguments `where`."""
    P: Array = softmax(ed_logits(z, x, theta, model, **where))  # return
    return P
