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
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms import DTransformerParams, Variant
from algorithms.layers import zero_padding
from algorithms.machinery.arrays import accumulation_dtype
from training.generation.cache import Cache, KeyValues, chosen_sequences, held, rows_of, side_by_side, whole, with_room
from training.generation.layout import Weights, rows_of_parts, sizes_of_layers
from training.generation.sampling import History
from training.generation.slots import Slots


class Context(NamedTuple):
    """What the decoder of Algorithm 8 attends to: the keys and values of the encoded context, one cache per layer."""

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


def widest_window(variant: Variant) -> int | None:
    """Return the most tokens that a layer attends to when decoding; None for all."""
    windows: list[Any] = [line.window for line in variant.attentions]
    return None if None in windows else max(windows)


@functools.partial(jax.jit, static_argnames=("C", "most", "n"))
def begun(
    x: Int[Array, "B P"],
    lengths: Int[Array, "B"],
    caches: tuple[KeyValues, ...],
    *,
    C: int,
    most: int | None = None,
    n: int | None,
) -> State:
    """Return the state of prompts with the keys and values before slot P (the last `most`), and room for C slots."""
    P = x.shape[1]
    rooms = tuple(with_room(cache, C, most, n) for cache in caches)
    x = zero_padding(x, lengths)
    last = jnp.take_along_axis(x, lengths[:, None] - 1, axis=1)
    return _at_slot(P, rooms, jnp.pad(jnp.concatenate([x, last], axis=1), ((0, 0), (0, C - P - 1))), lengths)


def _at_slot(slot: int, caches: tuple[Cache, ...], tokens: Int[Array, "B C"], lengths: Int[Array, "B"]) -> State:
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
    _, H_kv, *sizes = sizes_of_layers(weights)

    def empty() -> Cache:
        rows = KeyValues(*(jnp.zeros((H_kv * B, C, d), weights.W_e.dtype) for d in sizes))
        return with_room(rows, C, None, rows_of_parts(weights, B))

    tokens = jnp.zeros((B, C), jnp.int32).at[:, 0].set(bos)
    return _at_slot(0, tuple(empty() for _ in layers), tokens, jnp.ones(B, jnp.int32))


@jax.jit
def joined(state: State, other: State, rows: Int[Array, "n"]) -> State:
    """Return the chosen ``rows`` of the B sequences in one state followed by the b just read into another. All continue
    from the slot of the first state, so the prompts of the other have at most that many tokens before their last.
    """
    (B, C), (b, C_o) = state.tokens.shape, other.tokens.shape

    def both(of_state, of_other):
        return jnp.concatenate([of_state, of_other])[rows]

    def resized(of_slots):
        return jnp.pad(of_slots[:, :C], ((0, 0), (0, max(0, C - C_o))))

    last = jax.lax.dynamic_slice_in_dim(other.tokens, other.slot, 1, axis=1)
    tokens = jax.lax.dynamic_update_slice_in_dim(resized(other.tokens), last, state.slot, axis=1)
    moved = held(state.slot, rows_of(state.caches[0])) + other.slot - state.slot
    there = jnp.broadcast_to(jnp.where(moved < 0, 0, moved % rows_of(other.caches[0])), (b, len(moved)))

    def both_caches(cache, of_other):
        of_other = whole(of_other).arranged(there)
        of_other = Slots.of(*of_other, cache.n) if isinstance(cache, Slots) else of_other
        return chosen_sequences(side_by_side(cache, of_other, B), rows, B + b)

    return State(
        caches=tuple(both_caches(*of_layer) for of_layer in zip(state.caches, other.caches, strict=True)),
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
    """Return the given rows of a state that was just read; rows may repeat."""
    B = len(state.tokens)
    return state._replace(
        caches=tuple(chosen_sequences(cache, rows, B) for cache in state.caches),
        **{name: getattr(state, name)[rows] for name in ("tokens", "log_p", "ended", "first", "lengths", "drawn")},
    )


@functools.partial(jax.jit, static_argnames=("C", "most"))
def grow(state: State, *, C: int, most: int | None = None) -> State:
    """Return the state with room for C slots, and for the keys and values of the last `most` tokens (None: all)."""
    R = min(C, most or C)

    def grown(of_slots):
        return jnp.pad(of_slots, ((0, 0), (0, C - of_slots.shape[1])) + ((0, 0),) * (of_slots.ndim - 2))

    return state._replace(
        caches=tuple((cache if C == R else whole(cache)).grown(R) for cache in state.caches),
        tokens=grown(state.tokens),
        log_p=grown(state.log_p),
        likeliest=jax.tree.map(grown, state.likeliest),
    )
