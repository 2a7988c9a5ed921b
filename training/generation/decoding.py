"""One step of Algorithms 10 and 8 from a cache, and the compiled loop of Algorithms 14 and 15 around it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from algorithms import BIDIRECTIONAL, UNIDIRECTIONAL, Variant, layers
from algorithms.alg08_ed_transformer import ed_decoder_lines
from algorithms.alg10_d_transformer import d_lines
from algorithms.layers import lines_of, with_caches
from algorithms.lines import Experts
from algorithms.machinery.options import using
from algorithms.model.parallel import Both
from algorithms.notation import Implementation
from algorithms.ops.activation import softmax
from training.generation.attending import CachedAttention, ContextAttention, keys_of_distances
from training.generation.cache import Cache, RecurrentState, joined, rows_of
from training.generation.layout import Weights
from training.generation.sampling import SamplingArrays, draw, keys_of_tokens, penalized
from training.generation.states import Context, Likeliest, State, grow


def step(weights: Weights, context: Context | None, state: State) -> tuple[Float[Array, "N_V B"], tuple[Cache, ...]]:
    """Read the token in the last slot of every sequence; return the next tokens' distributions and the new caches."""
    scores, caches = _scores(weights, context, state, _of_distances(weights, state.caches))
    return softmax(scores), caches


def implementation_of(variant: Variant) -> Implementation:
    """Return what computes few columns: the printed lines, but not for experts, since those would compute them all."""
    return "auto" if any(isinstance(line, Experts) for line in variant.mlps) else "paper"


def _of_distances(weights: Any, caches: tuple[Cache, ...]) -> tuple[Any, ...]:
    """Return the keys of the distances in the cache of every layer; None if its scores use no distances."""
    if hasattr(weights, "layers"):
        mixers, table = [layer.attention for layer in weights.layers], weights.distances
    else:
        mixers, table = [layer.self_attention for layer in weights.decoder], weights.decoder_distances
    (d_e, _), dtype = weights.W_e.shape, weights.W_e.dtype

    def of_mixer(line: Any, W: Any, cache: Any) -> Any:
        R = 0 if isinstance(cache, RecurrentState) else rows_of(cache)
        return keys_of_distances(line, W, d_e, dtype, table, R)

    def of_layer(l, W, cache):
        caches = cache if isinstance(cache, Both) else (cache,)
        each = zip(weights.variant.attention_of(l).parts(W), caches, strict=True)
        return joined(of_mixer(line, of, of_part) for (line, of), of_part in each)

    return tuple(of_layer(l, W, cache) for l, (W, cache) in enumerate(zip(mixers, caches, strict=True)))


def _scores(weights: Weights, context: Context | None, state: State, P: tuple[Any, ...]):
    """Return the logits of the next token of every sequence, and the new caches."""
    y = jax.lax.dynamic_index_in_dim(state.tokens, state.slot, axis=1, keepdims=False)
    t = state.lengths - 1 + state.slot - state.first

    def readable(cache: Any, of_distances: Any) -> Any:
        if isinstance(cache, Both):
            return Both(*map(readable, cache, of_distances))
        return cache.state if isinstance(cache, RecurrentState) else CachedAttention(cache, of_distances, t, state.slot)

    kept = layers.MixerCaches(tuple(map(readable, state.caches, P)))
    with using(implementation=implementation_of(weights.variant)):
        if context is None:
            f = lines_of("Algorithm 10", y, weights, positions=t, caches=kept)
            X, kept = with_caches(d_lines, f, y, weights, UNIDIRECTIONAL)
        else:
            caches: Any = context.caches
            kept = kept._replace(context=tuple(ContextAttention(cache, context.permitted) for cache in caches))
            f = lines_of("decoder of Algorithm 8", y, weights, positions=t, caches=kept)
            Z = jnp.zeros((weights.W_e.shape[0], 0), weights.W_e.dtype)  # what is needed of it is kept
            X, kept = with_caches(ed_decoder_lines, f, Z, y, weights, UNIDIRECTIONAL, BIDIRECTIONAL)
    return weights.variant.unembedding.logits(X, weights), _caches(kept.own)


def _caches(own: tuple[Any, ...]) -> tuple[Cache, ...]:
    def of_layer(of: Any) -> Cache:
        if isinstance(of, Both):
            return Both(*map(of_layer, of))
        return of.cache if isinstance(of, CachedAttention) else RecurrentState(of)

    return tuple(map(of_layer, own))


@functools.partial(jax.jit, donate_argnames=("state",))
def decode(
    weights: Weights,
    context: Context | None,
    state: State,
    keys: Key[Array, "B"],
    *,
    stop: Int[Array, ""],
    sampling: SamplingArrays,
    begins: Bool[Array, "N_V B"] | None = None,
) -> State:
    """Generate tokens up to slot `stop`, or until every sequence has ended. The state is donated. Sequence r draws its
    token i with ``fold_in(keys[r], i)``; it may begin with the tokens that `begins` marks (None: with any). If every
    token is ruled out for it, it ends with eos; after its end, it is filled with eos of log-probability 0. `context` is
    None for a decoder.
    """
    of_distances = _of_distances(weights, state.caches)

    def unfinished(state):
        return (state.slot < stop) & ~jnp.all(state.ended)

    def indices(state):
        return state.drawn + state.slot - state.first

    def generate(state, keys):
        scores, caches = _scores(weights, context, state, of_distances)
        P = softmax(scores)
        if state.history is not None:
            scores = penalized(scores, state.history, sampling)
        if sampling.logit_bias is not None:
            scores = scores + sampling.logit_bias.astype(scores.dtype)
        if begins is not None:
            scores = jnp.where(begins | (indices(state) > 0)[None], scores, -jnp.inf)
        exhausted = jnp.isneginf(scores.max(axis=0))
        y = draw(scores, keys, sampling)
        y = jnp.where(state.ended | exhausted, sampling.eos[:, 0], y)
        return _appended(state._replace(caches=caches), P, y, sampling.eos)

    def generate_some(state):
        of_tokens, first = keys_of_tokens(keys, indices(state), sampling), state.slot
        some = functools.partial(jax.lax.dynamic_index_in_dim, of_tokens, keepdims=False)

        def has_keys(state):
            return unfinished(state) & (state.slot < first + len(of_tokens))

        return jax.lax.while_loop(has_keys, lambda state: generate(state, lambda: some(state.slot - first)), state)

    return jax.lax.while_loop(unfinished, generate_some, state)


def _log(p: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """The logarithm of max(p, smallest positive number), since JSON, in which it is reported, has no −∞."""
    return jnp.log(jnp.maximum(p, jnp.finfo(p.dtype).tiny))


def _appended(state: State, P: Float[Array, "N_V B"], y: Int[Array, "B"], eos: Int[Array, "B E"]) -> State:
    """Return the state with one more token per sequence."""
    slot, ended = state.slot + 1, state.ended

    def write(of_slots, column):
        return jax.lax.dynamic_update_slice_in_dim(of_slots, column[:, None].astype(of_slots.dtype), slot, axis=1)

    likeliest = state.likeliest
    if likeliest is not None:
        best, which = jax.lax.top_k(P.T, likeliest.tokens.shape[2])
        likeliest = Likeliest(write(likeliest.tokens, which), write(likeliest.log_p, _log(best)))
    log_p = _log(jnp.take_along_axis(P, y[None], axis=0)[0])
    return state._replace(
        tokens=write(state.tokens, y),
        log_p=write(state.log_p, jnp.where(ended, 0, log_p)),
        ended=ended | jnp.any(y[:, None] == eos, axis=1),
        slot=slot,
        history=None if state.history is None else state.history.with_token(y),
        likeliest=likeliest,
    )


def grown_until(stop: int, state: State, advance: Callable[..., State]) -> State:
    """Return what ``advance(state, stop=…)``, called for each capacity, makes of a state up to slot `stop`."""
    while True:
        C = state.tokens.shape[1]
        here = min(stop, C - 1)
        state = advance(state, stop=np.int32(here))
        if here == stop or int(state.slot) < here:
            return state
        state = grow(state, C=2 * C)
