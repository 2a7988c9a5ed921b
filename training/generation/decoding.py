"""One step of Algorithms 10 and 8 from a cache, and the compiled loop of Algorithms 14 and 15 around it.

A `State` holds, slot by slot, the tokens of B sequences and their keys and values. Prompts of different lengths are
padded on the right to ``first + 1`` slots; the last token of each prompt stands once more in slot ``first``, from where
all sequences go on side by side, whatever the lengths of their prompts::

    slot         0   1   2   3   first   first+1  …
    sequence 0   a   b   c   ·     c     generated        lengths[0] = 3: slots 0 and 1, and from `first` on
    sequence 1   d   ·   ·   ·     d     generated        lengths[1] = 1: from `first` on

So a step writes one slot for all of them, and which slots a sequence may attend follows from its length.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from algorithms import (
    UNIDIRECTIONAL,
    DTransformerParams,
    EDDecoderLayerParams,
    EDTransformerParams,
    LayerNormParams,
    TransformerLayerParams,
    Variant,
    ed_encoding,
)
from algorithms.attention import mh_attention
from algorithms.d_transformer import d_layer
from algorithms.ed_transformer import decoder_layer, decoder_layer_norm_first
from algorithms.layers import Steps, without_padding
from algorithms.unembedding import unembedding, unembedding_matrix
from training.generation.cache import KeyValues, Projections, keys_and_values, mh_attention_cached
from training.generation.sampling import draw

__all__ = ["Context", "State", "Weights", "decode", "empty_state", "encode", "grow", "prefill", "step", "unstacked"]

NO_KEYS = (None, None, None)
"""What a layer draws its dropout with, where nothing is dropped."""


class Weights(NamedTuple):
    """Parameters laid out for reading them one column at a time.

    A slice of stacked layers, and a transposed matrix, would be copied for every token.

    Attributes:
        W_e: token embedding.
        W_p: positional embedding; None: sinusoids.
        layers: the layers of the decoder, one by one, with `Projections` for the parameters of an attention.
        norm: of the last layer's output; None: the paper has none in Algorithm 8.
        W_u: the unembedding, tied or not.
        embedding_norm: of the embeddings, or None.
        b_u: output bias, or None.
    """

    W_e: Float[Array, "d_e N_V"]
    W_p: Float[Array, "d_e l_max"] | None
    layers: tuple[Any, ...]
    norm: LayerNormParams | None
    W_u: Float[Array, "N_V d_e"]
    embedding_norm: LayerNormParams | None
    b_u: Float[Array, "N_V"] | None


class Context(NamedTuple):
    """What the decoder of Algorithm 8 attends to: keys and values of the encoded context, for each of its layers."""

    caches: tuple[KeyValues, ...]
    permitted: Bool[Array, "B l_z"]


class State(NamedTuple):
    """B sequences, as far as they have come; see the module's docstring.

    Attributes:
        caches: for each layer, keys and values of the slots before `slot`.
        tokens: the token in each slot, up to and with `slot`.
        scores: sum of the log-probabilities of the generated tokens.
        slot: the last slot that has a token, which is to be read next.
        first: the slot of the last token of the prompts.
        lengths: tokens of each prompt.
    """

    caches: tuple[KeyValues, ...]
    tokens: Int[Array, "B C"]
    scores: Float[Array, "B"]
    slot: Int[Array, ""]
    first: Int[Array, ""]
    lengths: Int[Array, "B"]


@jax.jit
def unstacked(theta: DTransformerParams | EDTransformerParams) -> Weights:
    """Return the parameters of Algorithm 10, or of the decoder of Algorithm 8, as `Weights`."""
    stacked = theta.layers if isinstance(theta, DTransformerParams) else theta.decoder
    L = jax.tree.leaves(stacked)[0].shape[0]
    return Weights(
        W_e=theta.W_e,
        W_p=theta.W_p,
        layers=tuple(_layer(jax.tree.map(lambda a, l=l: a[l], stacked)) for l in range(L)),
        norm=theta.norm if isinstance(theta, DTransformerParams) else theta.decoder_norm,
        W_u=unembedding_matrix(theta),
        embedding_norm=None if isinstance(theta, DTransformerParams) else theta.embedding_norm,
        b_u=theta.b_u,
    )


def _layer(params: TransformerLayerParams | EDDecoderLayerParams):
    if isinstance(params, TransformerLayerParams):
        return params._replace(attention=Projections.of(params.attention, context=False))
    return params._replace(
        self_attention=Projections.of(params.self_attention, context=False),
        cross_attention=Projections.of(params.cross_attention, context=True),
    )


@functools.partial(jax.jit, static_argnames=("variant", "C"))
def prefill(
    theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"], *, variant: Variant, C: int
) -> State:
    """Read prompts with Algorithm 10, all columns at once.

    Args:
        theta: the parameters.
        x: the prompts, padded on the right.
        lengths: tokens of each that are not padding.
        variant: what differs from the pseudocode.
        C: slots of the cache, more than P.
    """
    B, P = x.shape
    f = Steps(variant, "auto", "gelu")
    x = without_padding(x, lengths)
    X = f.token_embedding(x, theta) + f.positional_embedding(x, theta)

    def layer(X, theta_l):
        caches = []

        def attend(X, Z, W, mask, _):
            caches.append(keys_and_values(Z, W.heads, f.implementation))
            return mh_attention(X, Z, W, mask, implementation=f.implementation)

        X = d_layer(X, theta_l, UNIDIRECTIONAL, f._replace(attend=attend), NO_KEYS)
        return X, caches[0]

    _, stacked = jax.lax.scan(layer, X, theta.layers)
    L = stacked.K.shape[0]
    last = jnp.take_along_axis(x, lengths[:, None] - 1, axis=1)
    return State(
        caches=tuple(KeyValues(stacked.K[l], stacked.V[l]).grown(C) for l in range(L)),
        tokens=jnp.pad(jnp.concatenate([x, last], axis=1), ((0, 0), (0, C - P - 1))),
        scores=jnp.zeros(B, X.dtype),
        slot=jnp.asarray(P, jnp.int32),
        first=jnp.asarray(P, jnp.int32),
        lengths=lengths,
    )


@functools.partial(jax.jit, static_argnames=("variant",))
def encode(
    theta: EDTransformerParams, z: Int[Array, "B l_z"], z_lengths: Int[Array, "B"], *, variant: Variant
) -> Context:
    """Encode contexts with lines 1-9 of Algorithm 8, and form the keys and values that its line 16 attends."""
    Z = ed_encoding(z, theta, variant=variant, z_length=z_lengths)

    def of_layer(heads):
        return keys_and_values(Z, heads, "auto")

    stacked = jax.lax.map(of_layer, theta.decoder.cross_attention.heads)
    caches = tuple(KeyValues(stacked.K[l], stacked.V[l]) for l in range(stacked.K.shape[0]))
    return Context(caches, jnp.arange(z.shape[1])[None] < z_lengths[:, None])


@functools.partial(jax.jit, static_argnames=("B", "C", "bos"))
def empty_state(weights: Weights, *, B: int, C: int, bos: int) -> State:
    """Return B sequences that have their first token only, bos."""
    dtype = weights.W_e.dtype

    def empty(layer):
        W: Any = layer.attention if isinstance(layer, TransformerLayerParams) else layer.self_attention
        _, b_k, b_v = W.b
        (H, d_attn), d_mid = b_k.shape, b_v.shape[1]
        return KeyValues(jnp.zeros((H * B, C, d_attn), dtype), jnp.zeros((H * B, C, d_mid), dtype))

    zero = jnp.asarray(0, jnp.int32)
    tokens = jnp.zeros((B, C), jnp.int32).at[:, 0].set(bos)
    caches = tuple(empty(layer) for layer in weights.layers)
    return State(caches, tokens, jnp.zeros(B, dtype), zero, zero + 0, jnp.ones(B, jnp.int32))


@functools.partial(jax.jit, static_argnames=("C",))
def grow(state: State, *, C: int) -> State:
    """Return the state with room for C slots."""
    tokens = jnp.pad(state.tokens, ((0, 0), (0, C - state.tokens.shape[1])))
    return state._replace(caches=tuple(cache.grown(C) for cache in state.caches), tokens=tokens)


def step(
    weights: Weights, context: Context | None, state: State, *, variant: Variant
) -> tuple[Float[Array, "N_V B"], tuple[KeyValues, ...]]:
    """Read the token in the last slot of every sequence.

    Returns:
        the distribution of each next token, and the caches with the token that was read.
    """
    y = jax.lax.dynamic_index_in_dim(state.tokens, state.slot, axis=1, keepdims=False)
    t = state.lengths - 1 + state.slot - state.first
    s = jnp.arange(state.tokens.shape[1])[None]
    permitted = (s < state.lengths[:, None] - 1) | ((state.first <= s) & (s <= state.slot))
    caches = []

    def attend(X, Z, W, mask, _):
        if isinstance(Z, KeyValues):  # the context's
            return mh_attention_cached(X, W, Z, mask, None)[0]
        Y, cache = mh_attention_cached(X, W, state.caches[len(caches)], permitted, state.slot)
        caches.append(cache)
        return Y

    f = Steps(variant, "paper", "gelu" if context is None else "relu", attend)
    X = f.token_embedding(y, weights) + f.positional_embedding(y, weights, t)
    X = f.normalized(X, weights.embedding_norm)
    for l, theta_l in enumerate(weights.layers):
        if context is None:
            X = d_layer(X, theta_l, UNIDIRECTIONAL, f, NO_KEYS)
        else:
            layer = decoder_layer_norm_first if variant.norm_first else decoder_layer
            X = layer(X, theta_l, context.caches[l], context.permitted, f, NO_KEYS)
    return unembedding(f.normalized(X, weights.norm), weights.W_u, b_u=weights.b_u), tuple(caches)


@functools.partial(jax.jit, static_argnames=("variant", "top_k"), donate_argnames=("state",))
def decode(
    weights: Weights,
    context: Context | None,
    state: State,
    keys: Key[Array, "B"],
    *,
    stop: Int[Array, ""],
    tau: float | Float[Array, ""],
    top_p: float | Float[Array, ""] | None,
    eos: Int[Array, ""],
    variant: Variant,
    top_k: int | None,
) -> State:
    """Generate tokens up to slot `stop`, or until every sequence has ended.

    Args:
        weights: the parameters.
        context: what an encoder-decoder translates; None for a decoder.
        state: the sequences; its memory is used again.
        keys: one for each sequence, whose token i is drawn with ``fold_in(key, i)``.
        stop: the last slot that gets a token.
        tau: temperature.
        top_p: share of the nucleus, or None.
        eos: the token that ends a sequence; −1 for none. What follows it is eos again, of score 0.
        variant: what differs from the pseudocode.
        top_k: how many of the likeliest tokens to choose from, or None.
    """

    def unfinished(state):
        return (state.slot < stop) & ~jnp.all(_ended(state, eos))

    def generate(state):
        P, caches = step(weights, context, state, variant=variant)
        i = state.slot - state.first
        y = draw(P, keys, i, tau=tau, top_k=top_k, top_p=top_p)
        ended = _ended(state, eos)
        log_p = jnp.log(jnp.take_along_axis(P, y[None], axis=0)[0])
        tokens = jax.lax.dynamic_update_slice_in_dim(
            state.tokens, jnp.where(ended, eos, y)[:, None], state.slot + 1, axis=1
        )
        scores = state.scores + jnp.where(ended, 0, log_p)
        return State(caches, tokens, scores, state.slot + 1, state.first, state.lengths)

    return jax.lax.while_loop(unfinished, generate, state)


def _ended(state: State, eos) -> Bool[Array, "B"]:
    y = jax.lax.dynamic_index_in_dim(state.tokens, state.slot, axis=1, keepdims=False)
    return (y == eos) & (state.slot > state.first)
