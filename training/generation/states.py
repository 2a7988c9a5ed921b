"""Sequences that are being generated: their tokens, slot by slot, and the keys and values of those.

A `State` holds, slot by slot, the tokens of B sequences. Prompts of different lengths are padded on the right to
``first + 1`` slots; the last token of each prompt stands once more in slot ``first``, from where all sequences go on
side by side, whatever the lengths of their prompts::

    slot         0   1   2   3   4   5   6   7   …
    sequence 0   a   b   c   ·   c   generated            lengths[0] = 3, first[0] = 4
    sequence 1   d   ·   ·   ·   d   generated            lengths[1] = 1, first[1] = 4
    sequence 2   e   f   ·   ·   ·   ·   f   generated    lengths[2] = 2, first[2] = 6

So a step writes one slot for all of them. Sequence 2 has joined the others when they had two tokens each. The keys and
values of a prompt stand in the slots right before ``first``, those of a and b in 2 and 3: the distance between two
tokens is that of their slots, and it alone says which slots a sequence may attend to.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms import DTransformerParams, Variant
from algorithms.layers import zero_padding
from algorithms.machinery.arrays import accumulation_dtype
from training.generation.cache import KeyValues, Projections, held
from training.generation.layout import Weights
from training.generation.repetition import History


class Context(NamedTuple):
    """What the decoder of Algorithm 8 attends to: keys and values of the encoded context, for each of its layers."""

    caches: tuple[KeyValues, ...]
    permitted: Bool[Array, "B l_z"]


class Likeliest(NamedTuple):
    """The likeliest tokens in the place of each slot's, and their log-probabilities."""

    tokens: Int[Array, "B C N"]
    log_p: Float[Array, "B C N"]


class State(NamedTuple):
    """B sequences, as far as they have come; see the module's docstring."""

    # for each layer, keys and values of the slots before `slot`, or of the last R of them
    caches: tuple[KeyValues, ...]
    tokens: Int[Array, "B C"]  # the token in each slot, up to and with `slot`
    # the log-probability of the generated token in each slot, 0 of the others and behind the end
    log_p: Float[Array, "B C"]
    ended: Bool[Array, "B"]  # which sequences have ended
    slot: Int[Array, ""]  # the last slot that has a token, which is to be read next
    first: Int[Array, "B"]  # the slot of the last token of each prompt
    lengths: Int[Array, "B"]  # tokens of each prompt
    drawn: Int[Array, "B"]  # how many tokens of each were generated before those behind `first`
    history: History | None = None  # all tokens so far, where they decide what may come; or None
    likeliest: Likeliest | None = None  # what else each slot could have had, where that is wanted; or None


def widest_window(variant: Variant) -> int | None:
    """Return how many tokens decoding ever attends to; None for all."""
    windows: list[Any] = [line.window for line in variant.attentions]
    return None if None in windows else max(windows)


@functools.partial(jax.jit, static_argnames=("C",))
def begun(x: Int[Array, "B P"], lengths: Int[Array, "B"], caches: tuple[KeyValues, ...], *, C: int) -> State:
    """Return the state of prompts whose keys and values are known."""
    B, P = x.shape
    x = zero_padding(x, lengths)
    last = jnp.take_along_axis(x, lengths[:, None] - 1, axis=1)
    return State(
        caches=caches,
        tokens=jnp.pad(jnp.concatenate([x, last], axis=1), ((0, 0), (0, C - P - 1))),
        log_p=jnp.zeros((B, C), accumulation_dtype(caches[0].K.dtype)),
        ended=jnp.zeros(B, bool),
        slot=jnp.asarray(P, jnp.int32),
        first=jnp.full(B, P, jnp.int32),
        lengths=lengths,
        drawn=jnp.zeros(B, jnp.int32),
    )


def prompt_tokens(lengths: Int[Array, "B"], first: Any, R: int) -> Int[Array, "B R"]:
    """Return which token of its prompt each row of a cache holds when slot `first` is next; none, if below 0."""
    return held(first, R)[None] - (first - lengths + 1)[:, None]


@functools.partial(jax.jit, static_argnames=("B", "C", "bos"))
def empty_state(weights: Weights, *, B: int, C: int, bos: int) -> State:
    """Return B sequences that have their first token only, bos."""
    dtype = weights.W_e.dtype
    layers = weights.layers if isinstance(weights, DTransformerParams) else weights.decoder

    def empty(layer):
        W: Projections = layer.attention if isinstance(weights, DTransformerParams) else layer.self_attention
        _, (H, d_attn), (_, d_mid) = W.heads
        return KeyValues(jnp.zeros((H * B, C, d_attn), dtype), jnp.zeros((H * B, C, d_mid), dtype))

    return State(
        caches=tuple(empty(layer) for layer in layers),
        tokens=jnp.zeros((B, C), jnp.int32).at[:, 0].set(bos),
        log_p=jnp.zeros((B, C), accumulation_dtype(dtype)),
        ended=jnp.zeros(B, bool),
        slot=jnp.asarray(0, jnp.int32),
        first=jnp.zeros(B, jnp.int32),
        lengths=jnp.ones(B, jnp.int32),
        drawn=jnp.zeros(B, jnp.int32),
    )


@jax.jit
def joined(state: State, other: State, rows: Int[Array, "n"]) -> State:
    """Return some sequences, by ``rows``, of B in one state and b others just read after them, which continue from
    the slot of the first; they have at most as many tokens before their last one as that slot has slots before it.
    """
    (B, C), (b, C_o) = state.tokens.shape, other.tokens.shape

    def both(of_state, of_other):
        return jnp.concatenate([of_state, of_other])[rows]

    def resized(of_slots):
        return jnp.pad(of_slots[:, :C], ((0, 0), (0, max(0, C - C_o))))

    last = jax.lax.dynamic_slice_in_dim(other.tokens, other.slot, 1, axis=1)
    tokens = jax.lax.dynamic_update_slice_in_dim(resized(other.tokens), last, state.slot, axis=1)
    moved = held(state.slot, rows_of(state)) + other.slot - state.slot
    there = jnp.broadcast_to(jnp.where(moved < 0, 0, moved % rows_of(other)), (b, len(moved)))
    of_other = [cache.arranged(there) for cache in other.caches]
    of_both = [a.beside(o, B).of_sequences(rows, B + b) for a, o in zip(state.caches, of_other, strict=True)]
    return State(
        caches=tuple(of_both),
        tokens=both(state.tokens, tokens),
        log_p=both(state.log_p, resized(other.log_p)),
        ended=both(state.ended, other.ended),
        slot=state.slot,
        first=both(state.first, jnp.full(b, state.slot)),
        lengths=both(state.lengths, other.lengths),
        drawn=both(state.drawn, other.drawn),
        likeliest=jax.tree.map(lambda a: both(a, jnp.zeros((b, *a.shape[1:]), a.dtype)), state.likeliest),
    )


@jax.jit
def chosen(state: State, rows: Int[Array, "n"]) -> State:
    """Return some sequences of a state that was just read, each as often as its row is there."""
    B = len(state.tokens)
    return state._replace(
        caches=tuple(cache.of_sequences(rows, B) for cache in state.caches),
        **{name: getattr(state, name)[rows] for name in ("tokens", "log_p", "ended", "first", "lengths", "drawn")},
    )


def rows_of(state: State) -> int:
    """Return the number of rows of the caches."""
    return state.caches[0].K.shape[1]


@functools.partial(jax.jit, static_argnames=("C", "most"))
def grow(state: State, *, C: int, most: int | None = None) -> State:
    """Return the state with room for C slots, and for the keys and values of all tokens, or the last `most`."""

    def grown(of_slots):
        return jnp.pad(of_slots, ((0, 0), (0, C - of_slots.shape[1])) + ((0, 0),) * (of_slots.ndim - 2))

    return state._replace(
        caches=tuple(cache.grown(min(C, most or C)) for cache in state.caches),
        tokens=grown(state.tokens),
        log_p=grown(state.log_p),
        likeliest=jax.tree.map(grown, state.likeliest),
    )
