"""The state of generation: the tokens of sequences, slot by slot, and their keys and values.

A `State` holds the tokens of B sequences in slots. Prompts are padded on the right, and the last token of each prompt
is repeated in slot ``first``, from which all sequences continue side by side, whatever the lengths of their prompts::

    slot         0   1   2   3   4   5   6   7   …
    sequence 0   a   b   c   ·   c   generated            lengths[0] = 3, first[0] = 4
    sequence 1   d   ·   ·   ·   d   generated            lengths[1] = 1, first[1] = 4
    sequence 2   e   f   ·   ·   ·   ·   f   generated    lengths[2] = 2, first[2] = 6

So each step writes the same slot for all sequences. Sequence 2 joined when the others had generated two tokens each.
The keys and values of a prompt are in the slots right before ``first``: those of a and b in slots 2 and 3. The distance
between two tokens is therefore that of their slots, and determines which slots a sequence may attend to.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms import DTransformerParams, Variant
from algorithms.layers import zero_padding
from algorithms.lines import Attention
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.model.parallel import Both
from training.generation.cache import (
    Cache,
    KeyValues,
    RecurrentState,
    chosen_sequences,
    held,
    joined,
    rows_of,
    rows_of_parts,
    side_by_side,
    whole,
    with_room,
)
from training.generation.layout import Weights
from training.generation.projections import has_cache, sizes_of_heads
from training.generation.sampling import History


class Context(NamedTuple):
    """Keys and values of the encoded context in Algorithm 8's decoder, one cache per layer."""

    caches: tuple[Cache, ...]
    permitted: Bool[Array, "B l_z"]


class Likeliest(NamedTuple):
    """The likeliest tokens at each slot, and their log-probabilities."""

    tokens: Int[Array, "B C N"]
    log_p: Float[Array, "B C N"]


class State(NamedTuple):
    """B sequences so far; see the module's docstring."""

    caches: tuple[Cache, ...]  # of each layer, keys and values of the slots before `slot`, or of the last R of them
    tokens: Int[Array, "B C"]  # the token in each slot, up to and including `slot`
    log_p: Float[Array, "B C"]  # of the generated token in each slot; 0 in other slots and after the end
    ended: Bool[Array, "B"]  # which sequences have ended
    slot: Int[Array, ""]  # the last slot with a token, which is read next
    first: Int[Array, "B"]  # the slot that repeats the last token of each prompt
    lengths: Int[Array, "B"]  # tokens of each prompt
    drawn: Int[Array, "B"]  # how many tokens of each were generated before slot `first` + 1
    history: History | None = None  # all tokens so far, if they change the scores of the next one
    likeliest: Likeliest | None = None  # the likeliest tokens at each slot, if wanted


Limits = tuple[int | None, ...]
"""Number of last tokens that the cache of each layer keeps; None for all."""


def windows(variant: Variant, L: int) -> Limits:
    """Return the most tokens to which each of L layers attends when decoding."""
    return tuple(variant.attention_of(l).window for l in range(L))


@functools.partial(jax.jit, static_argnames=("C", "n"))
def begun(x: Int[Array, "B P"], lengths: Int[Array, "B"], caches: tuple[Cache, ...], *, C: int, n: int | None) -> State:
    """Return the state of prompts with what layers kept of the tokens before slot P, and room for C slots."""
    P = x.shape[1]
    rooms = tuple(with_room(cache, C, n) for cache in caches)
    x = zero_padding(x, lengths)
    last = jnp.take_along_axis(x, lengths[:, None] - 1, axis=1)
    return at_slot(P, rooms, jnp.pad(jnp.concatenate([x, last], axis=1), ((0, 0), (0, C - P - 1))), lengths)


@jax.jit
def at_slot(slot: Any, caches: tuple[Cache, ...], tokens: Int[Array, "B C"], lengths: Int[Array, "B"]) -> State:
    """Return the state of sequences whose next token to read is in this slot, before anything is generated."""
    B, C = tokens.shape
    return State(
        caches=caches,
        tokens=tokens,
        log_p=jnp.zeros((B, C), accumulation_dtype(jax.tree.leaves(caches)[0].dtype)),
        ended=jnp.zeros(B, bool),
        slot=jnp.asarray(slot, jnp.int32),
        first=jnp.full(B, slot, jnp.int32),
        lengths=lengths,
        drawn=jnp.zeros(B, jnp.int32),
    )


def prompt_tokens(lengths: Int[Array, "B"], first: Any, R: int) -> Int[Array, "B R"]:
    """Return which token of its prompt each row of a cache holds when slot `first` is next; negative for none."""
    return held(first, R)[None] - (first - lengths + 1)[:, None]


@functools.partial(jax.jit, static_argnames=("B", "C", "bos"))
def empty_state(weights: Weights, *, B: int, C: int, bos: int) -> State:
    """Return B sequences with only their first token, bos."""
    layers = weights.layers if isinstance(weights, DTransformerParams) else weights.decoder

    def of_mixer(line, W) -> Cache:
        if not has_cache(line):
            return RecurrentState(() if isinstance(line, Attention) else line.begin(W, B))
        _, H_kv, *sizes = sizes_of_heads(line, W, len(weights.W_e), weights.W_e.dtype)
        K, V = (jnp.zeros((H_kv * B, C, d), weights.W_e.dtype) for d in sizes)
        return with_room(KeyValues(K, V), C, rows_of_parts(weights, B))

    def empty(l, layer) -> Cache:
        return joined(of_mixer(*part) for part in weights.variant.attention_of(l).parts(layer[0]))  # of self-attention

    tokens = jnp.zeros((B, C), jnp.int32).at[:, 0].set(bos)
    return at_slot(0, tuple(empty(*of) for of in enumerate(layers)), tokens, jnp.ones(B, jnp.int32))


def placed(given: list[State], rows: Int[Array, "n"], *, slot: int, C: int, n: int | None, N: int) -> State:
    """Return the chosen ``rows`` of the sequences in the given states, one after another, as they continue from `slot`
    with room for C slots, in parts of n (see `with_room`); a slot that has at least as many before it as any of these
    sequences has tokens. N is how many of the `likeliest` tokens it records. The list is emptied, so that a layer's
    caches are freed once they are copied.
    """
    layers, rest = [list(state.caches) for state in given], tuple(state._replace(caches=()) for state in given)
    given.clear()
    slots, B, caches = tuple(state.slot for state in rest), tuple(len(state.tokens) for state in rest), []
    while layers[0]:
        of_layer = tuple(of_state.pop(0) for of_state in layers)
        caches.append(placed_cache(of_layer, slots, rows, np.int32(slot), B=B, C=C, n=n))
    return _placed_tokens(rest, rows, np.int32(slot), C=C, N=N)._replace(caches=tuple(caches))


@functools.partial(jax.jit, static_argnames=("B", "C", "n"))
def placed_cache(
    caches: tuple[Cache, ...],
    slots: tuple[Int[Array, ""], ...],
    rows: Int[Array, "n"],
    slot: Int[Array, ""],
    *,
    B: tuple[int, ...],
    C: int,
    n: int | None,
) -> Cache:
    """Return the chosen rows of caches of B sequences each, whose tokens before `slots` are then before `slot`."""

    def moved(cache, before):
        if isinstance(cache, RecurrentState):
            return cache
        if isinstance(cache, Both):
            return Both(*(moved(part, before) for part in cache))
        there = held(slot, min(C, cache.limit or C)) - slot
        in_cache = jnp.where(there + before < 0, 0, (there + before) % rows_of(cache))
        return whole(cache).taken(in_cache)

    every, *others = map(moved, caches, slots)
    for i, other in enumerate(others, start=1):
        every = side_by_side(every, other, sum(B[:i]))
    every = chosen_sequences(every, rows, sum(B))
    return with_room(every, C, n)


@functools.partial(jax.jit, static_argnames=("C", "N"))
def _placed_tokens(given: tuple[State, ...], rows: Int[Array, "n"], slot: Int[Array, ""], *, C: int, N: int) -> State:
    """Return the chosen rows of states, without caches, as they continue from `slot`; of tokens only the last."""

    def every(name):
        return jnp.concatenate([getattr(state, name) for state in given])[rows]

    last = [jax.lax.dynamic_index_in_dim(state.tokens, state.slot, axis=1) for state in given]
    first = jnp.concatenate([state.first - state.slot for state in given])[rows] + slot
    B, dtype = len(rows), given[0].log_p.dtype
    tokens = jnp.zeros((B, C), jnp.int32)
    return State(
        caches=(),
        tokens=jax.lax.dynamic_update_slice_in_dim(tokens, jnp.concatenate(last)[rows], slot, axis=1),
        log_p=jnp.zeros((B, C), dtype),
        ended=every("ended"),
        slot=slot,
        first=first,
        lengths=every("lengths"),
        drawn=every("drawn"),
        likeliest=Likeliest(jnp.zeros((B, C, N), jnp.int32), jnp.zeros((B, C, N), dtype)) if N else None,
    )


@functools.partial(jax.jit, static_argnames=("C",))
def grow(state: State, *, C: int) -> State:
    """Return the state with room for C slots."""

    def grown(of_slots):
        return jnp.pad(of_slots, ((0, 0), (0, C - of_slots.shape[1])) + ((0, 0),) * (of_slots.ndim - 2))

    return state._replace(
        caches=tuple(with_room(cache, C, None) for cache in state.caches),
        tokens=grown(state.tokens),
        log_p=grown(state.log_p),
        likeliest=jax.tree.map(grown, state.likeliest),
    )
