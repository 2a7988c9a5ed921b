"""Beam search with an encoder-decoder, after Wu et al. 2016."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from training.generation import decoding, states
from training.generation.buckets import capacity
from training.generation.cache import chosen_sequences
from training.generation.layout import Weights
from training.generation.states import Context, State


def beam_search(
    weights: Weights, context: Context, *, l_max: int, beam_size: int, length_penalty: float, bos: int, eos: int
) -> tuple[Int[Array, "B l_max"], Int[Array, "B"], Float[Array, "B"]]:
    """Search for the likeliest translations, as `training.generation.translate` describes: each step extends every
    unfinished one by every token, and keeps the best ``beam_size`` of these and the finished ones.
    """
    B, K = context.permitted.shape[0], beam_size
    wide = _repeated(context, K)
    state = states.empty_state(weights, B=B * K, C=capacity(2), bos=bos)
    dtype = state.log_p.dtype
    scores = jnp.tile(jnp.where(jnp.arange(K) == 0, 0, -jnp.inf).astype(dtype), B)
    counts = jnp.ones(B * K, jnp.int32)
    alpha = jnp.asarray(length_penalty, dtype)

    def advance(state: State, *, stop: Array) -> State:
        nonlocal scores, counts
        state, scores, counts = _search(weights, wide, state, scores, counts, stop, alpha, K=K, eos=eos)
        return state

    state = decoding.grown_until(l_max - 1, state, advance)
    return _best(state.tokens, scores, counts, alpha, int(state.slot) + 1, eos, K, l_max)


@functools.partial(jax.jit, static_argnames=("K",))
def _repeated(context: Context, K: int) -> Context:
    B = context.permitted.shape[0]
    rows = jnp.repeat(jnp.arange(B), K)
    return Context(tuple(chosen_sequences(cache, rows, B) for cache in context.caches), context.permitted[rows])


@functools.partial(jax.jit, static_argnames=("K", "eos"), donate_argnames=("state", "scores", "counts"))
def _search(weights: Weights, context, state: State, scores, counts, stop, alpha, *, K: int, eos: int):
    """Search up to slot `stop`, or until every beam has ended, given the beams' log-probabilities and token counts."""
    BK, N_V = state.tokens.shape[0], weights.W_e.shape[1]
    # A translation that has ended can only be extended by eos, at no cost.
    only_eos = jnp.where(jnp.arange(N_V) == eos, 0, -jnp.inf).astype(scores.dtype)

    def unfinished(searched):
        state, scores, _ = searched
        return (state.slot < stop) & ~jnp.all(state.ended | jnp.isneginf(scores))

    def extend(searched):
        state, scores, counts = searched
        P, caches = decoding.step(weights, context, state)
        done = state.ended
        log_p = jnp.where(done[:, None], only_eos[None], jnp.log(P.T))
        extended = scores[:, None] + log_p
        lengths = jnp.where(done, counts, counts + 1)
        ranked = (extended / _penalty(lengths, alpha)[:, None]).reshape(-1, K * N_V)
        _, chosen = jax.lax.top_k(ranked, K)
        parents = (jnp.arange(BK // K)[:, None] * K + chosen // N_V).reshape(-1)
        y = (chosen % N_V).reshape(-1).astype(jnp.int32)
        tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens[parents], y[:, None], state.slot + 1, axis=1)
        caches = tuple(chosen_sequences(cache, parents, BK) for cache in caches)
        state = state._replace(caches=caches, tokens=tokens, ended=done[parents] | (y == eos), slot=state.slot + 1)
        return state, extended[parents, y], lengths[parents]

    return jax.lax.while_loop(unfinished, extend, (state, scores, counts))


def _penalty(counts: Int[Array, "*beams"], alpha: Float[Array, ""]) -> Float[Array, "*beams"]:
    """``((5 + |Y|)/6)^α``, where |Y| does not count bos_token."""
    return ((5 + counts.astype(alpha.dtype) - 1) / 6) ** alpha


@functools.partial(jax.jit, static_argnames=("written", "eos", "K", "l_max"))
def _best(tokens, scores, counts, alpha, written: int, eos: int, K: int, l_max: int):
    ranked = (scores / _penalty(counts, alpha)).reshape(-1, K)
    best = jnp.arange(ranked.shape[0]) * K + jnp.argmax(ranked, axis=1)
    padding = ((0, 0), (0, l_max - written))
    return jnp.pad(tokens[best, :written], padding, constant_values=eos), counts[best], scores[best]
