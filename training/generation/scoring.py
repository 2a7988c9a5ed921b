"""Scoring given sequences with a trained model: their probabilities, classes, embeddings, and masked tokens.

Batches are padded on the right, as in `training.generation`; sequences of one bucket share a compiled program. The
functions raise TypeError for tokens that are not integers and for other architectures, and ValueError for a sequence
that is empty, longer than l_max, or has an unknown token.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from algorithms import (
    DTransformerConfig,
    DTransformerParams,
    EDTransformerConfig,
    EDTransformerParams,
    ETransformerConfig,
    ETransformerParams,
    bos_token,
    d_hidden_state,
    d_token_losses,
    e_encoding,
    e_transformer,
    ed_token_losses,
    mask_token,
)
from algorithms.layers import zero_padding
from algorithms.machinery.arrays import accumulation_dtype
from training.generation import inputs
from training.generation.buckets import bucketed, padded_rows
from training.generation.inputs import Lengths, Tokens
from training.tasks.classify import ClassifierParams, class_probabilities

COLUMNS_AT_ONCE = 32
_classes = jax.jit(class_probabilities)


def log_probabilities(
    theta: DTransformerParams | EDTransformerParams,
    x: Tokens,
    *,
    lengths: Lengths,
    config: DTransformerConfig | EDTransformerConfig,
    z: Tokens | None = None,
    z_lengths: Lengths | None = None,
) -> Float[np.ndarray, "B m"]:
    """``log P[x[t+1], t]``, 0 after a sequence's last token, of a decoder, or an encoder-decoder with contexts z."""
    is_decoder = isinstance(config, DTransformerConfig)
    kinds = (DTransformerParams, DTransformerConfig) if is_decoder else (EDTransformerParams, EDTransformerConfig)
    inputs.check_model(theta, config, *kinds)
    x, lengths = inputs.checked("x", x, lengths, config)
    if is_decoder and (z is not None or z_lengths is not None):
        raise ValueError("z: expected None, since a decoder has no context, got contexts")
    context = None
    if not is_decoder:
        if z is None or z_lengths is None:
            raise ValueError("z: an encoder-decoder needs contexts and their lengths, z and z_lengths, got None")
        z, z_lengths = inputs.checked("z", z, z_lengths, config, N_V=config.N_V_z)
        if len(z) != len(x):
            raise ValueError(f"z: expected a context for each of the {len(x)} sequences of x, got {len(z)}")
        context = bucketed(z, config.l_max), z_lengths
    losses = _losses(theta, context, bucketed(x, config.l_max), lengths)
    return -np.asarray(losses)[:, : x.shape[1] - 1]


def scored(
    theta: DTransformerParams, x: Tokens, *, lengths: Lengths, config: DTransformerConfig, n: int
) -> tuple[Float[np.ndarray, "B m"], Int[np.ndarray, "B m n"], Float[np.ndarray, "B m n"]]:
    """The log-probability of each token after the first of each sequence; the n likeliest tokens at its position, in
    descending order; and their log-probabilities. All are meaningless after a sequence's last token, which is not read:
    a sequence has at most l_max + 1.
    """
    inputs.check_model(theta, config, DTransformerParams, DTransformerConfig)
    x, lengths = np.asarray(x), np.asarray(lengths)
    following, _ = inputs.checked("x", x[:, 1:], np.maximum(lengths - 1, 1), config)
    x, lengths = inputs.checked("x", x[:, :-1], np.maximum(lengths - 1, 1), config)
    padded = bucketed(x, config.l_max), bucketed(following, config.l_max)
    found = _scored(theta, *padded, lengths, n=n)
    log_p, likeliest, of_likeliest = (np.asarray(array)[:, : x.shape[1]] for array in found)
    return log_p, likeliest, of_likeliest


def perplexity(log_p: Float[np.ndarray, "B m"], lengths: Int[np.ndarray, "B"]) -> float:
    """``exp(−Σ log p / n)`` over the n tokens scored by `log_probabilities`; raises ValueError if n is 0."""
    n = int(np.sum(np.asarray(lengths) - 1))
    if n < 1:
        raise ValueError("lengths: expected a sequence of at least two tokens, since the first is not predicted")
    mean = -float(np.sum(log_p)) / n
    return math.exp(mean) if mean < 700 else math.inf


def bits_per_byte(
    theta: DTransformerParams,
    tokens: Int[np.ndarray, "n"],
    n_bytes: int,
    *,
    config: DTransformerConfig,
    stride: int | None = None,
    batch_size: int = 8,
    bos: int | None = None,
) -> float:
    """Bits per byte of a text of n_bytes bytes under a decoder, each token predicted once. A window of l_max tokens
    slides over the text, after ``bos`` (default: the paper's), by ``stride`` tokens (default: half of l_max; smaller
    ones give more context and take longer), and its new tokens are predicted from all before them in it.
    """
    l_max = config.l_max
    stride = max(1, l_max // 2) if stride is None else stride
    inputs.check_count("stride", stride, l_max - 1, ", one less than l_max")
    inputs.check_count("n_bytes", n_bytes)
    if not len(tokens):
        raise ValueError("tokens: expected a text of at least one token, got none")
    text = np.concatenate([[bos_token(config.N_V) if bos is None else bos], tokens])
    starts = [0, *range(stride, len(text) - l_max + stride, stride)]
    nats = 0.0
    for i in range(0, len(starts), batch_size):
        windows = [text[start : start + l_max] for start in starts[i : i + batch_size]]
        x, lengths = padded_rows(windows + [text[:1]] * (batch_size - len(windows)))
        log_p = log_probabilities(theta, x, lengths=lengths, config=config)
        for start, of_window in zip(starts[i : i + batch_size], log_p, strict=False):
            nats -= float(of_window[0 if start == 0 else l_max - stride - 1 :].sum(dtype=np.float64))
    return nats / math.log(2) / n_bytes


def classify(
    params: ClassifierParams, x: Tokens, *, lengths: Lengths, config: ETransformerConfig
) -> Float[Array, "B N_C"]:
    """The probabilities of the classes of each text, from bos_token to eos_token."""
    if not isinstance(params, ClassifierParams):
        raise TypeError(f"params: expected ClassifierParams, got {type(params).__name__}")
    inputs.check_model(params.encoder, config, ETransformerParams, ETransformerConfig)
    x, lengths = inputs.checked("x", x, lengths, config)
    return _classes(bucketed(x, config.l_max), params, length=lengths).T


def fill_masks(
    theta: ETransformerParams,
    x: Tokens,
    *,
    lengths: Lengths,
    config: ETransformerConfig,
    n: int = 1,
    mask: int | None = None,
) -> list[list[list[tuple[int, float]]]]:
    """The n likeliest tokens, with their probabilities, at each ``mask`` (default: the paper's mask_token) of each
    sequence, from left to right, by Algorithm 9. Raises ValueError, too, for a sequence without one, and for an n
    outside [1, N_V].
    """
    inputs.check_model(theta, config, ETransformerParams, ETransformerConfig)
    inputs.check_count("n", n, config.N_V, ", the size of the vocabulary")
    x, lengths = inputs.checked("x", x, lengths, config)
    mask = mask_token(config.N_V) if mask is None else mask
    masks = [np.flatnonzero(row[:length] == mask) for row, length in zip(x, lengths, strict=True)]
    for r, places in enumerate(masks):
        if not len(places):
            raise ValueError(f"x: sequence {r} has no mask_token ({mask}) to be filled")
    padded, length = jnp.asarray(bucketed(x, config.l_max)), jnp.asarray(lengths)
    P = np.asarray(e_transformer(padded, theta, length=length))
    filled = []
    for r, places in enumerate(masks):
        likeliest = [np.argsort(-P[:, r, t], kind="stable")[:n] for t in places]
        filled.append([[(int(v), float(P[v, r, t])) for v in vs] for t, vs in zip(places, likeliest, strict=True)])
    return filled


def sentence_embeddings(
    theta: ETransformerParams, x: Tokens, *, lengths: Lengths, config: ETransformerConfig
) -> Float[np.ndarray, "B d_e"]:
    """The mean encoding of each text's tokens, of unit length: after training for it, dot products are similarities."""
    inputs.check_model(theta, config, ETransformerParams, ETransformerConfig)
    x, lengths = inputs.checked("x", x, lengths, config)
    E = np.asarray(_means(theta, bucketed(x, config.l_max), lengths))
    return E / np.linalg.norm(E, axis=1, keepdims=True)


@jax.jit
def _losses(theta: Any, context, x, lengths) -> Float[Array, "B l"]:
    x = zero_padding(x, lengths)
    if context is None:
        return d_token_losses(x, theta, length=lengths)
    z, z_lengths = context
    return ed_token_losses(z, x, theta, z_length=z_lengths, length=lengths)


@functools.partial(jax.jit, static_argnames=("n",))
def _scored(theta: DTransformerParams, x, following, lengths, *, n: int):
    x, following = zero_padding(x, lengths), zero_padding(following, lengths)
    X = d_hidden_state(x, theta)

    def of_column(column):  # a few at a time: the logits of all would be by far the largest array
        X_t, v = column
        scores = theta.variant.unembedding.logits(X_t[:, None], theta)[:, 0]
        log_p = jax.nn.log_softmax(scores.astype(accumulation_dtype(scores.dtype)))
        best, which = jax.lax.top_k(log_p, n)
        return log_p[v], which, best

    columns = jnp.moveaxis(X, 0, -1).reshape(-1, X.shape[0]), following.reshape(-1)
    found = jax.lax.map(of_column, columns, batch_size=COLUMNS_AT_ONCE)
    return tuple(array.reshape(*x.shape, *array.shape[1:]) for array in found)


@jax.jit
def _means(theta: ETransformerParams, x, lengths) -> Float[Array, "B d_e"]:
    X = e_encoding(x, theta, length=lengths)
    weights = jnp.arange(x.shape[1])[None] < lengths[:, None]
    return (jnp.where(weights[None], X, 0).sum(axis=2) / lengths[None].astype(X.dtype)).T
