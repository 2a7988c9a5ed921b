"""One step of Algorithms 10 and 8 from a cache, and the compiled loop of Algorithms 14 and 15 around it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from algorithms import DTransformerParams, Variant
from algorithms.alg08_ed_transformer import OWN, decoder_hidden_state
from algorithms.alg10_d_transformer import decoder_lines, hidden_state
from algorithms.layers import lines_of
from algorithms.ops.softmax import log_softmax, softmax
from training.generation.cache import KeyValues, NewTokens, held, mh_attention_cached
from training.generation.layout import Weights
from training.generation.repetition import penalized
from training.generation.sampling import SamplingArrays, draw
from training.generation.states import Context, Likeliest, State, grow, rows_of


def step(
    weights: Weights, context: Context | None, state: State, *, variant: Variant
) -> tuple[Float[Array, "N_V B"], tuple[KeyValues, ...]]:
    """Read the token in the last slot of every sequence; return the distributions of the next tokens and the new
    caches.
    """
    weights = _with_distances(weights, variant, rows_of(state))
    scores, caches = _scores(weights, context, state, variant)
    return softmax(scores), caches


def _with_distances(weights: Weights, variant: Variant, R: int) -> Weights:
    """Return the weights with `Projections.P` for caches of R rows, in attentions whose scores use distances."""
    is_d = isinstance(weights, DTransformerParams)
    name, attention = ("layers", "attention") if is_d else ("decoder", "self_attention")
    table = weights.distances if is_d else weights.decoder_distances
    lines = variant.attentions

    def of_layer(l, layer):
        found = getattr(layer, attention).with_distances(lines[l % len(lines)], table, R)
        return layer._replace(**{attention: found})

    return weights._replace(**{name: tuple(of_layer(*numbered) for numbered in enumerate(getattr(weights, name)))})


def _scores(weights: Weights, context: Context | None, state: State, variant: Variant):
    """Return the logits of the next token of every sequence, and the new caches."""
    y = jax.lax.dynamic_index_in_dim(state.tokens, state.slot, axis=1, keepdims=False)
    t = state.lengths - 1 + state.slot - state.first
    distances = jnp.broadcast_to(held(state.slot + 1, rows_of(state)) - state.slot, (len(t), rows_of(state)))
    permitted = t[:, None] + distances >= 0
    caches, of_context = [], iter(() if context is None else context.caches)

    def attend(line, X, Z, W, mask, **options):
        if Z is context and context is not None:
            return mh_attention_cached(line, X, W, next(of_context), NewTokens(context.permitted, t))[0], None
        within = permitted if line.window is None else permitted & (-line.window < distances)
        new = NewTokens(within, t, state.slot, distances, options["table"].positions)
        Y, cache = mh_attention_cached(line, X, W, state.caches[len(caches)], new)
        caches.append(cache)
        return Y, None

    if context is None:
        f = decoder_lines(variant, "paper", attend=attend)
        X = hidden_state(y, t, weights, None, None, f)
    else:
        f = lines_of(variant, "paper", *OWN, attend=attend)
        X = decoder_hidden_state(context, y, t, weights, None, None, f)
    return variant.unembedding.logits(X, weights), tuple(caches)


@functools.partial(jax.jit, static_argnames=("variant", "once"), donate_argnames=("state",))
def decode(
    weights: Weights,
    context: Context | None,
    state: State,
    keys: Key[Array, "B"],
    *,
    stop: Int[Array, ""],
    sampling: SamplingArrays,
    variant: Variant,
    begins: Bool[Array, "N_V B"] | None = None,
    once: bool = False,
) -> State:
    """Generate tokens up to slot `stop`, or until every sequence has ended.

    Args:
        weights: the parameters.
        context: the encoded contexts that an encoder-decoder translates; None for a decoder.
        state: the sequences, donated.
        keys: one for each sequence, whose token i is drawn with ``fold_in(key, i)``.
        stop: the last slot that gets a token.
        sampling: how tokens are drawn. If every token is ruled out for a sequence, it ends with eos; after its end, it
            is filled with eos of log-probability 0.
        variant: the lines of the model.
        begins: the tokens that each sequence may begin with, or None for all.
        once: generate one token, regardless of `stop`.
    """
    weights = _with_distances(weights, variant, rows_of(state))

    def unfinished(state):
        return (state.slot < stop) & ~jnp.all(state.ended)

    def generate(state):
        scores, caches = _scores(weights, context, state, variant)
        P = softmax(scores)
        i = state.drawn + state.slot - state.first
        if state.history is not None:
            scores = penalized(scores, state.history, sampling)
        if sampling.logit_bias is not None:
            scores = scores + sampling.logit_bias.astype(scores.dtype)
        if begins is not None:
            scores = jnp.where(begins | (i > 0)[None], scores, -jnp.inf)
        exhausted = jnp.all(jnp.isneginf(scores), axis=0)
        y = draw(log_softmax(scores), keys, i, sampling)
        y = jnp.where(state.ended | exhausted, sampling.eos[:, 0], y)
        return _appended(state._replace(caches=caches), P, y, sampling.eos)

    return generate(state) if once else jax.lax.while_loop(unfinished, generate, state)


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


def decode_until(
    weights: Weights,
    context: Context | None,
    state: State,
    keys: Key[Array, "B"],
    stop: int,
    options: dict[str, Any],
    decode: Callable[..., State] = decode,
    most: int | None = None,
) -> State:
    """Generate up to slot `stop`, calling `decode` with `options` once for each capacity of the cache."""
    while True:
        C = state.tokens.shape[1]
        here = min(stop, C - 1)
        state = decode(weights, context, state, keys, stop=jnp.asarray(here, jnp.int32), **options)
        if here == stop or int(state.slot) < here:
            return state
        state = grow(state, C=2 * C, most=most)
