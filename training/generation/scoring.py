"""What a trained model thinks of given sequences: their probabilities, their classes, and what their masks hide.

Batches of sequences x are padded on the right, with ``lengths`` tokens that are not padding, as in
`training.generation`, and checked in the same way. Whatever their lengths, those of one bucket share what is compiled.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms import (
    DTransformerConfig,
    DTransformerParams,
    EDTransformerConfig,
    EDTransformerParams,
    ETransformerConfig,
    ETransformerParams,
    Variant,
    bos_token,
    d_hidden_state,
    e_encoding,
    e_transformer,
    ed_hidden_state,
    mask_token,
    token_losses,
)
from algorithms.layers import zero_padding
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.ops.linear import logits
from training.generation import inputs
from training.generation.cache import bucket
from training.tasks.classify import ClassifierParams, class_probabilities
from training.tasks.objectives import has_next, next_tokens

COLUMNS_AT_ONCE = 32

Tokens = Int[Array, "B l"] | np.ndarray
Lengths = Int[Array, "B"] | np.ndarray


def log_probabilities(
    theta: DTransformerParams | EDTransformerParams,
    x: Tokens,
    *,
    lengths: Lengths,
    config: DTransformerConfig | EDTransformerConfig,
    z: Tokens | None = None,
    z_lengths: Lengths | None = None,
) -> Float[np.ndarray, "B m"]:
    """``log P[x[t+1], t]``, in nats, of each token after the first of each sequence, 0 after its last: of a decoder, or
    of an encoder-decoder with the contexts z. Raises TypeError for tokens that are not integers, or parameters of
    another architecture, and ValueError for a sequence that is empty, longer than l_max, or has an unknown token; or
    for contexts that are missing, or that a decoder cannot have.
    """
    is_decoder = isinstance(config, DTransformerConfig)
    kinds = (DTransformerParams, DTransformerConfig) if is_decoder else (EDTransformerParams, EDTransformerConfig)
    inputs.check_model(theta, config, *kinds)
    x, lengths = inputs.checked("x", x, lengths, config)
    if is_decoder and (z is not None or z_lengths is not None):
        raise ValueError("z: a decoder has no context, so expected None")
    context = None
    if not is_decoder:
        if z is None or z_lengths is None:
            raise ValueError("z: an encoder-decoder needs contexts and their lengths, z and z_lengths, got None")
        z, z_lengths = inputs.checked("z", z, z_lengths, config, N_V=config.N_V_z)
        inputs.check_rows(z, x)
        context = _padded(z, config), z_lengths
    losses = _losses(theta, context, _padded(x, config), lengths, variant=config.variant.without_dropout())
    return -np.asarray(losses)[:, : x.shape[1] - 1]


def are_likeliest(
    theta: DTransformerParams, x: Tokens, *, lengths: Lengths, config: DTransformerConfig
) -> Bool[np.ndarray, "B m"]:
    """Whether each token after the first of each sequence is the one that greedy decoding takes. Raises TypeError or
    ValueError as `log_probabilities`.
    """
    inputs.check_model(theta, config, DTransformerParams, DTransformerConfig)
    x, lengths = inputs.checked("x", x, lengths, config)
    found = _likeliest(theta, _padded(x, config), lengths, variant=config.variant.without_dropout())
    return np.asarray(found)[:, : x.shape[1] - 1] == x[:, 1:]


def scored(
    theta: DTransformerParams, x: Tokens, *, lengths: Lengths, config: DTransformerConfig, n: int
) -> tuple[Float[np.ndarray, "B m"], Int[np.ndarray, "B m n"], Float[np.ndarray, "B m n"]]:
    """The log-probability of each token after the first of each sequence; the n likeliest in its place, the likeliest
    first; and the log-probabilities of these. After a sequence's last token they are meaningless. Raises TypeError or
    ValueError as `log_probabilities`.
    """
    inputs.check_model(theta, config, DTransformerParams, DTransformerConfig)
    x, lengths = inputs.checked("x", x, lengths, config)
    found = _scored(theta, _padded(x, config), lengths, variant=config.variant.without_dropout(), n=n)
    log_p, likeliest, of_likeliest = (np.asarray(array)[:, : x.shape[1] - 1] for array in found)
    return log_p, likeliest, of_likeliest


def perplexity(log_p: Float[np.ndarray, "B m"], lengths: Int[np.ndarray, "B"]) -> float:
    """``exp(−Σ log p / n)`` of all n tokens that `log_probabilities` predicted.

    Raises:
        ValueError: if there are none.

    Example:
        >>> round(perplexity(np.log([[0.5, 0.125]]), np.array([3])), 9)
        4.0
    """
    n = int(np.sum(np.asarray(lengths) - 1))
    if n < 1:
        raise ValueError("lengths: expected a sequence of at least two tokens, the second of which is predicted")
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
    """How many bits a decoder needs for each of n_bytes bytes of a text without bos, where every token is predicted
    once. A window of l_max tokens slides over the text by ``stride`` (half of l_max unless given; fewer see more and
    take longer), and what is new in it is predicted from all that comes before it in the window. The first one begins
    with bos, the paper's unless given. Raises ValueError for a text without tokens or bytes, an unknown token, or a
    stride outside [1, l_max − 1].
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
        x, lengths = inputs.padded_rows(windows + [text[:1]] * (batch_size - len(windows)))
        log_p = log_probabilities(theta, x, lengths=lengths, config=config)
        for start, of_window in zip(starts[i : i + batch_size], log_p, strict=False):
            nats -= float(of_window[0 if start == 0 else l_max - stride - 1 :].sum(dtype=np.float64))
    return nats / math.log(2) / n_bytes


def classify(
    params: ClassifierParams, x: Tokens, *, lengths: Lengths, config: ETransformerConfig
) -> Float[Array, "B N_C"]:
    """The probabilities of the classes of each text, from bos_token to eos_token. Raises TypeError for tokens that are
    not integers, or parameters of another kind, and ValueError for a text that is empty, longer than l_max, or has an
    unknown token.
    """
    if not isinstance(params, ClassifierParams):
        raise TypeError(f"params: expected ClassifierParams, got {type(params).__name__}")
    inputs.check_model(params.encoder, config, ETransformerParams, ETransformerConfig)
    x, lengths = inputs.checked("x", x, lengths, config)
    return _classes(params, _padded(x, config), lengths, variant=config.variant.without_dropout())


def fill_masks(
    theta: ETransformerParams,
    x: Tokens,
    *,
    lengths: Lengths,
    config: ETransformerConfig,
    n: int = 1,
    mask: int | None = None,
) -> list[list[list[tuple[int, float]]]]:
    """The n likeliest tokens, with their probabilities, of each masked place of each sequence, from left to right, with
    Algorithm 9. They are masked by ``mask``, the paper's mask_token unless given. Raises TypeError for tokens that are
    not integers, or parameters of another kind, and ValueError for a sequence that is empty, longer than l_max, or has
    an unknown token or no mask; or an impossible n.
    """
    inputs.check_model(theta, config, ETransformerParams, ETransformerConfig)
    inputs.check_count("n", n, config.N_V, ", the size of the vocabulary")
    x, lengths = inputs.checked("x", x, lengths, config)
    mask = mask_token(config.N_V) if mask is None else mask
    masks = [np.flatnonzero(row[:length] == mask) for row, length in zip(x, lengths, strict=True)]
    for r, places in enumerate(masks):
        if not len(places):
            raise ValueError(f"x: sequence {r} has no mask_token ({mask}) to be filled")
    P = np.asarray(_masked(theta, _padded(x, config), lengths, variant=config.variant.without_dropout()))
    filled = []
    for r, places in enumerate(masks):
        likeliest = [np.argsort(-P[r, :, t], kind="stable")[:n] for t in places]
        filled.append([[(int(v), float(P[r, v, t])) for v in vs] for t, vs in zip(places, likeliest, strict=True)])
    return filled


def sentence_embeddings(
    theta: ETransformerParams, x: Tokens, *, lengths: Lengths, config: ETransformerConfig
) -> Float[np.ndarray, "B d_e"]:
    """The mean of the encodings of each text's tokens, of length 1: dot products are the similarities of sentences,
    where the encoder was trained for this. Raises TypeError for tokens that are not integers, or parameters of another
    kind, and ValueError for a text that is empty, longer than l_max, or has an unknown token.
    """
    inputs.check_model(theta, config, ETransformerParams, ETransformerConfig)
    x, lengths = inputs.checked("x", x, lengths, config)
    E = np.asarray(_means(theta, _padded(x, config), lengths, variant=config.variant.without_dropout()))
    return E / np.linalg.norm(E, axis=1, keepdims=True)


def _padded(x: np.ndarray, config: Any) -> np.ndarray:
    l = min(bucket(x.shape[1]), config.l_max)
    return np.pad(x, ((0, 0), (0, l - x.shape[1])))


@functools.partial(jax.jit, static_argnames=("variant",))
def _losses(theta: Any, context, x, lengths, *, variant: Variant) -> Float[Array, "B l"]:
    x = zero_padding(x, lengths)
    if context is None:
        X = d_hidden_state(x, theta, variant=variant)
    else:
        z, z_lengths = context
        X = ed_hidden_state(z, x, theta, variant=variant, z_length=z_lengths)
    losses = token_losses(
        X, variant.unembedding.matrix(theta), next_tokens(x), b_u=theta.b_u, cap=variant.unembedding.cap
    )
    return jnp.where(has_next(x, lengths) > 0, losses, 0)


@functools.partial(jax.jit, static_argnames=("variant",))
def _likeliest(theta: DTransformerParams, x, lengths, *, variant: Variant) -> Int[Array, "B l"]:
    X = d_hidden_state(zero_padding(x, lengths), theta, variant=variant)
    W_u = variant.unembedding.matrix(theta)
    # One sequence after another: all logits would be the largest array there is.
    return jax.lax.map(lambda X_b: jnp.argmax(logits(X_b, W_u, theta.b_u), axis=0), jnp.moveaxis(X, 1, 0))


@functools.partial(jax.jit, static_argnames=("variant", "n"))
def _scored(theta: DTransformerParams, x, lengths, *, variant: Variant, n: int):
    x = zero_padding(x, lengths)
    X = d_hidden_state(x, theta, variant=variant)

    def of_column(column):
        X_t, v = column
        scores = variant.unembedding.logits(X_t[:, None], theta)[:, 0]
        log_p = jax.nn.log_softmax(scores.astype(accumulation_dtype(scores.dtype)))
        best, which = jax.lax.top_k(log_p, n)
        return log_p[v], which, best

    columns = jnp.moveaxis(X, 0, -1).reshape(-1, X.shape[0]), next_tokens(x).reshape(-1)
    found = jax.lax.map(of_column, columns, batch_size=COLUMNS_AT_ONCE)  # all logits would be the largest array
    return tuple(array.reshape(*x.shape, *array.shape[1:]) for array in found)


@functools.partial(jax.jit, static_argnames=("variant",))
def _classes(params: ClassifierParams, x, lengths, *, variant: Variant) -> Float[Array, "B N_C"]:
    return class_probabilities(x, params, variant=variant, length=lengths).T


@functools.partial(jax.jit, static_argnames=("variant",))
def _means(theta: ETransformerParams, x, lengths, *, variant: Variant) -> Float[Array, "B d_e"]:
    X = e_encoding(x, theta, variant=variant, length=lengths)
    weights = jnp.arange(x.shape[1])[None] < lengths[:, None]
    return (jnp.where(weights[None], X, 0).sum(axis=2) / lengths[None].astype(X.dtype)).T


@functools.partial(jax.jit, static_argnames=("variant",))
def _masked(theta: ETransformerParams, x, lengths, *, variant: Variant) -> Float[Array, "B N_V l"]:
    return jnp.moveaxis(e_transformer(x, theta, variant=variant, length=lengths), 1, 0)
