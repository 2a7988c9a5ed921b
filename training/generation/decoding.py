"""One step of Algorithms 10 and 8 from a cache, and the compiled loop of Algorithms 14 and 15 around it.

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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Bool, Float, Int, Key

from algorithms import UNIDIRECTIONAL, DTransformerParams, EDTransformerParams, Variant, ed_encoding
from algorithms.alg08_ed_transformer import OWN, decoder_hidden_state
from algorithms.alg10_d_transformer import decoder_lines, hidden_state, residual_stream
from algorithms.layers import attend_in_full, lines_of, positions_in, zero_padding
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.ops.int8 import Int8Matrix
from algorithms.ops.softmax import log_softmax, softmax
from training.generation.cache import KeyValues, Projections, held, keys_and_values, mh_attention_cached
from training.generation.repetition import History, penalized
from training.generation.sampling import SamplingArrays, draw

NO_KEYS = (None, None, None)
"""What a layer draws its dropout with, where nothing is dropped."""


Weights = DTransformerParams | EDTransformerParams
"""Parameters as `unstacked` lays them out for reading one column at a time."""


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


def unstacked(theta: DTransformerParams | EDTransformerParams, *, variant: Variant, int8: bool = False) -> Weights:
    """Return the parameters of Algorithm 10 or 8 with the decoder's layers one by one, and W_u untied; with
    ``int8``, the matrices that are read for every token are rounded.

    A slice of stacked layers, and a transposed matrix, would be copied for every token.
    """
    name = "layers" if isinstance(theta, DTransformerParams) else "decoder"
    stacked = getattr(theta, name)
    if int8:
        theta = theta._replace(W_u=_rounded(variant.unembedding.matrix(theta)))
    laid_out = (lambda layer: _in_int8(_layer(layer))) if int8 else _layer
    return theta._replace(**{name: _one_by_one(stacked, variant, laid_out)})


def _part(stacked: Any, l: int) -> Any:
    """An array of layer l: on a CPU the same memory, elsewhere a copy."""
    if not _is_here(stacked):
        return stacked[l]
    place = stacked.sharding if stacked.committed else None
    return jax.device_put(np.asarray(stacked)[l], place, may_alias=True)


def _is_here(a: Any) -> bool:
    """Whether an array is in the memory of this process's CPU alone."""
    is_array = isinstance(a, jax.Array) and not isinstance(a, Tracer)
    return is_array and len(a.devices()) == 1 and {device.platform for device in a.devices()} == {"cpu"}


def _layer(params: Any) -> Any:
    """A layer with `Projections` for the parameters of its attentions."""
    attentions = {name: name == "cross_attention" for name in params._fields if "attention" in name}
    laid_out = {name: Projections.of(getattr(params, name), context=c) for name, c in attentions.items()}
    return params._replace(**laid_out)


_rounded = jax.jit(Int8Matrix.of)
"""Compiled by itself, once for each shape: in one program, the matrices of all layers would be compiled one by one."""


def _in_int8(layer: Any) -> Any:
    """A layer whose matrices are rounded."""
    changed = {name: getattr(layer, name).with_matrices(_rounded) for name in layer._fields if "attention" in name}
    if layer.mlp is not None:
        matrices = {name: W for name, W in layer.mlp._asdict().items() if name.startswith("W_") and W is not None}
        changed["mlp"] = layer.mlp._replace(**{name: _rounded(W) for name, W in matrices.items()})
    return layer._replace(**changed)


def widest_window(variant: Variant) -> int | None:
    """Return how many tokens decoding ever attends to; None for all."""
    windows: list[Any] = [line.window for line in variant.attentions]
    return None if None in windows else max(windows)


def prefill(
    theta: DTransformerParams,
    x: Int[Array, "B P"] | np.ndarray,
    lengths: Int[Array, "B"] | np.ndarray,
    *,
    variant: Variant,
    C: int,
    most: int | None = None,
) -> State:
    """Read prompts, padded on the right, with Algorithm 10, all columns at once, into a cache of C slots, more than
    P.

    Where the layers are a tuple, as `apart` returns them, each is run by itself and reads its parameters where they
    are; a loop over stacked ones copies them first. Of the last layer, only keys and values are computed.
    """
    R = min(C, most or C)
    if not _are_apart(theta.layers):
        return begun(x, lengths, _keys_and_values(theta, x, lengths, variant=variant, R=R), C=C)
    caches, lines, X = [], variant.attentions, _embedded(theta._replace(layers=()), x, lengths, variant=variant)
    for l, layer in enumerate(theta.layers):
        of_layer = theta._replace(layers=(layer,), norm=None)
        turn = variant.but(attention=lines[l % len(lines)])
        X, cache = layer_read(X, of_layer, lengths, variant=turn, R=R, is_last=l == len(theta.layers) - 1)
        caches.append(cache)
    return begun(x, lengths, tuple(caches), C=C)


def _are_apart(layers: Any) -> bool:
    return isinstance(layers, tuple) and not hasattr(layers, "_fields")


def apart(theta: DTransformerParams, *, variant: Variant) -> DTransformerParams:
    """Return the parameters with all layers one by one, in the same memory; as they are, where that is impossible."""
    if not all(_is_here(a) for a in jax.tree.leaves(theta.layers)):
        return theta
    return theta._replace(layers=_one_by_one(theta.layers, variant, lambda layer: layer))


def _one_by_one(stacked: Any, variant: Variant, laid_out: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The parameters of every layer, laid out; layers that share theirs get the same arrays, not copies."""
    L = jax.tree.leaves(stacked)[0].shape[0]
    layers = [laid_out(jax.tree.map(lambda a, l=l: _part(a, l), stacked)) for l in range(L)]
    return tuple(layer for layer in layers for _ in range(variant.shared_layers))


@functools.partial(jax.jit, static_argnames=("variant", "R"))
def _keys_and_values(
    theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"], *, variant: Variant, R: int
) -> tuple[KeyValues, ...]:
    """Return the keys and values of prompts in caches of R rows, of each layer, from stacked parameters."""
    kept: list[Any] = []
    f = decoder_lines(variant, "auto", attend=_keeping(lengths, x.shape[1], R), kept=kept)
    hidden_state(zero_padding(x, lengths), None, theta, UNIDIRECTIONAL, None, f)
    (stacked,) = kept
    return tuple(KeyValues(stacked.K[l], stacked.V[l]) for l in range(stacked.K.shape[0]))


@functools.partial(jax.jit, static_argnames=("variant",))
def _embedded(
    theta: DTransformerParams, x: Int[Array, "B P"], lengths: Int[Array, "B"], *, variant: Variant
) -> Float[Array, "d_e B P"]:
    """Return the embeddings of prompts: lines 1-3 of Algorithm 10."""
    x = zero_padding(x, lengths)
    return decoder_lines(variant, "auto").embedding(x, positions_in(x), theta)


@functools.partial(jax.jit, static_argnames=("variant", "R", "is_last"))
def layer_read(
    X: Float[Array, "d_e B P"],
    theta: DTransformerParams,
    lengths: Int[Array, "B"],
    *,
    variant: Variant,
    R: int,
    is_last: bool,
) -> tuple[Float[Array, "d_e B P"] | None, KeyValues]:
    """Return the residual stream after one layer, None if it is the last, and what a cache of R rows keeps of it."""
    kept: list[KeyValues] = []
    keeping = _keeping(lengths, X.shape[-1], R)

    def attend(*arguments, **options):
        Y, keys_and_values = keeping(*arguments, **options)
        kept.append(keys_and_values)
        return Y, None

    f = decoder_lines(variant, "auto", attend=attend)
    X = residual_stream(X, positions_in(X[0]), theta, UNIDIRECTIONAL, f)
    return None if is_last else X, kept[0]


def _keeping(lengths: Int[Array, "B"], P: int, R: int) -> Callable[..., tuple[Array, KeyValues]]:
    """The attention of whole prompts of P slots, which keeps keys and values in a cache of R rows."""
    rows = prompt_tokens(lengths, P, R)

    def attend(line, X, Z, W, mask, **options):
        Y, _ = attend_in_full(line, X, Z, W, mask, **options)
        return Y, keys_and_values(Z, W, line, options["t_z"], "auto", options["table"].positions).arranged(rows)

    return attend


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


@functools.partial(jax.jit, static_argnames=("variant",))
def encode(
    theta: EDTransformerParams, z: Int[Array, "B l_z"], z_lengths: Int[Array, "B"], *, variant: Variant
) -> Context:
    """Encode contexts with lines 1-9 of Algorithm 8, and form the keys and values that its line 16 attends."""
    Z = ed_encoding(z, theta, variant=variant, z_length=z_lengths)

    line = variant.attentions[0]

    def of_layer(W):
        return keys_and_values(Z, W, line, None, "auto")

    stacked = jax.lax.map(of_layer, theta.decoder.cross_attention)
    own = tuple(KeyValues(stacked.K[l], stacked.V[l]) for l in range(stacked.K.shape[0]))
    caches = tuple(cache for cache in own for _ in range(variant.shared_layers))
    return Context(caches, jnp.arange(z.shape[1])[None] < z_lengths[:, None])


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
    the slot of the first; they have at most so many tokens before their last as that has slots before its own.
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


def step(
    weights: Weights, context: Context | None, state: State, *, variant: Variant
) -> tuple[Float[Array, "N_V B"], tuple[KeyValues, ...]]:
    """Read the token in the last slot of every sequence; return the distribution of each next token, and the caches
    with it.
    """
    weights = _with_distances(weights, variant, rows_of(state))
    scores, caches = _scores(weights, context, state, variant)
    return softmax(scores), caches


def _with_distances(weights: Weights, variant: Variant, R: int) -> Weights:
    """Return the weights whose attentions know what each distance in R rows adds to their scores."""
    is_d = isinstance(weights, DTransformerParams)
    name, attention = ("layers", "attention") if is_d else ("decoder", "self_attention")
    table = weights.distances if is_d else weights.decoder_distances
    lines = variant.attentions

    def of_layer(l, layer):
        found = getattr(layer, attention).with_distances(lines[l % len(lines)], table, R)
        return layer._replace(**{attention: found})

    return weights._replace(**{name: tuple(of_layer(*numbered) for numbered in enumerate(getattr(weights, name)))})


def _scores(weights: Weights, context: Context | None, state: State, variant: Variant):
    """Return the logits of the next token of every sequence, and the caches."""
    y = jax.lax.dynamic_index_in_dim(state.tokens, state.slot, axis=1, keepdims=False)
    t = state.lengths - 1 + state.slot - state.first
    distances = jnp.broadcast_to(held(state.slot + 1, rows_of(state)) - state.slot, (len(t), rows_of(state)))
    permitted = t[:, None] + distances >= 0
    caches, of_context = [], iter(() if context is None else context.caches)

    def attend(line, X, Z, W, mask, **options):
        if Z is context and context is not None:
            return mh_attention_cached(line, X, W, next(of_context), context.permitted, t, None)[0], None
        within = permitted if line.window is None else permitted & (-line.window < distances)
        Y, cache = mh_attention_cached(
            line, X, W, state.caches[len(caches)], within, t, state.slot, distances, options["table"].positions
        )
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
        context: what an encoder-decoder translates; None for a decoder.
        state: the sequences; its memory is used again.
        keys: one for each sequence, whose token i is drawn with ``fold_in(key, i)``.
        stop: the last slot that gets a token.
        sampling: how tokens are drawn. Where nothing may follow a sequence, its eos ends it; what follows an end is
            eos again, of log-probability 0.
        variant: the lines of the model.
        begins: the tokens that each sequence may begin with, or None for all.
        once: generate one token, whatever `stop` is.
    """
    weights = _with_distances(weights, variant, rows_of(state))

    def unfinished(state):
        return (state.slot < stop) & ~jnp.all(state.ended)

    def generate(state):
        scores, caches = _scores(weights, context, state, variant)
        P = softmax(scores)
        i = state.drawn + state.slot - state.first
        scores = _adjusted(scores, state, sampling)
        if begins is not None:
            scores = jnp.where(begins | (i > 0)[None], scores, -jnp.inf)
        exhausted = jnp.all(jnp.isneginf(scores), axis=0)
        y = draw(log_softmax(scores), keys, i, tau=sampling.tau, top_k=sampling.top_k, top_p=sampling.top_p)
        y = jnp.where(state.ended | exhausted, sampling.eos[:, 0], y)
        return _appended(state._replace(caches=caches), P, y, sampling.eos)

    return generate(state) if once else jax.lax.while_loop(unfinished, generate, state)


def _adjusted(scores: Float[Array, "N_V B"], state: State, sampling: SamplingArrays) -> Float[Array, "N_V B"]:
    """Return the scores after the penalties, and the biases."""
    if state.history is not None:
        scores = penalized(
            scores,
            state.history,
            penalty=sampling.repetition_penalty,
            ngram=sampling.no_repeat_ngram_size,
            frequency=sampling.frequency_penalty,
            presence=sampling.presence_penalty,
        )
    return scores if sampling.logit_bias is None else scores + sampling.logit_bias.astype(scores.dtype)


def _log(p: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """The logarithm, of 0 that of the smallest number: it is written as JSON, which has no −∞."""
    return jnp.log(jnp.maximum(p, jnp.finfo(p.dtype).tiny))


def _appended(state: State, P: Float[Array, "N_V B"], y: Int[Array, "B"], eos: Int[Array, "B E"]) -> State:
    """Return the state with one more token for each sequence."""
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


def decoded(
    weights: Weights,
    context: Context | None,
    state: State,
    keys: Key[Array, "B"],
    stop: int,
    options: dict[str, Any],
    decode: Callable[..., State] = decode,
    most: int | None = None,
) -> State:
    """Generate up to slot `stop` as `decode` does, with these `options` of its, one compiled loop for each bucket
    of the cache.
    """
    while True:
        C = state.tokens.shape[1]
        here = min(stop, C - 1)
        state = decode(weights, context, state, keys, stop=jnp.asarray(here, jnp.int32), **options)
        if here == stop or int(state.slot) < here:
            return state
        state = grow(state, C=2 * C, most=most)
