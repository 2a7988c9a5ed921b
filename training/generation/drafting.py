"""Speculative decoding: the head for the token after the next drafts, and Algorithm 10 verifies.

Each pass of the model reads the last token of a sequence and the draft of the next one. The next token is drawn from
the first column as without a draft, with the same key; if it is the draft, the second column gives one more. So the
tokens are those of Algorithm 14, to the rounding of products with two columns. The head draws its draft with the key
of the token that it drafts, which makes equal tokens likely.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"; the head as the draft:
DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §5.4.3.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from algorithms import UNIDIRECTIONAL, DTransformerParams
from algorithms.alg10_d_transformer import d_lines
from algorithms.layers import MixerCaches, lines_of, positions_in, with_caches
from algorithms.machinery.options import using
from algorithms.model.theta import of_each_layer
from algorithms.mtp import mtp_columns, mtp_decoder
from algorithms.ops.dropout import by_own_key
from training.generation import inputs, layout
from training.generation.buckets import bucketed, capacity, padded_rows
from training.generation.continuation import Continuation, Generator
from training.generation.decoding import implementation_of
from training.generation.layout import Weights
from training.generation.requests import Request, begins_of, check_requests, sampling_arrays
from training.generation.sampling import History, SamplingArrays, draw, penalized


class Drafts(NamedTuple):
    """B sequences so far."""

    tokens: Int[Array, "B C"]  # prompts, and behind each its generated tokens
    log_p: Float[Array, "B C"]  # of the generated ones
    n: Int[Array, "B"]  # tokens that the model has read; token n has not been read
    draft: Int[Array, "B"]  # of token n + 1
    caches: tuple[Any, ...]  # of each layer, with a slot for each token
    of_head: tuple[Any, ...]  # likewise; slot t is of column t and token t + 1
    ended: Bool[Array, "B"]
    passes: Int[Array, ""]  # of the model, of all sequences
    accepted: Int[Array, ""]  # drafts among these


class Model(NamedTuple):
    """A decoder and its head, laid out for generation, and how each of B sequences is drawn."""

    weights: Weights
    head: Weights
    keys: Key[Array, "B"]
    sampling: SamplingArrays
    lengths: Int[Array, "B"]  # of the prompts
    given: Int[Array, "B"] | None  # the same; None if earlier tokens change no scores

    def read(self, weights: Weights, caches: Any, x: Any, n: Int[Array, "B"]) -> tuple[Float[Array, "d_e B m"], Any]:
        """Return lines 1 to 10 of m tokens, or columns in their place, behind the first n of each; and the caches."""
        slots = self.slots(x[0] if x.ndim == 3 else x, n)
        f = lines_of("Algorithm 10", x, weights, positions=slots, caches=MixerCaches(caches), slots=slots)
        with using(implementation=implementation_of(weights.variant)):
            X, found = with_caches(d_lines, f, x, weights, UNIDIRECTIONAL)
        return X, found.own

    def slots(self, x: Int[Array, "B m"], n: Int[Array, "B"]) -> Int[Array, "B m"]:
        """Return the slots of m tokens behind the first n."""
        return n[:, None] + positions_in(x).astype(n.dtype)

    def scores(self, X: Float[Array, "d_e *columns"]) -> Float[Array, "N_V *columns"]:
        """Return the logits of columns."""
        return self.weights.variant.unembedding.logits(X, self.weights)

    def drawn(
        self, scores: Float[Array, "N_V B"], i: Int[Array, "B"], tokens: Int[Array, "B C"], begins: Any = None
    ) -> tuple[Array, Array]:
        """Draw the i-th token of each sequence from its logits, behind its `tokens`, and return its log-probability."""
        log_P, sampling = jax.nn.log_softmax(scores, axis=0), self.sampling
        if self.given is not None:
            scores = penalized(scores, History(tokens, self.given + i, self.given), sampling)
        if sampling.logit_bias is not None:
            scores = scores + sampling.logit_bias.astype(scores.dtype)
        scores = scores if begins is None else jnp.where(begins, scores, -jnp.inf)
        y = draw(scores, lambda: jax.vmap(by_own_key(jax.random.fold_in))(self.keys, i), sampling)
        y = jnp.where(jnp.isneginf(scores.max(axis=0)), sampling.eos[:, 0], y)
        log_p = jnp.take_along_axis(log_P, y[None], axis=0)[0]
        return y, jnp.maximum(log_p, jnp.log(jnp.finfo(log_p.dtype).tiny))

    def drafted(
        self, caches: Any, X: Any, y: Int[Array, "B m"], n: Any, last: Any, tokens: Int[Array, "B C"]
    ) -> tuple[Array, Any]:
        """Draft the token behind y[last]; y are the tokens behind the columns X, and n is the position of the first."""
        columns = mtp_columns(X, y, self.weights, positions=self.slots(y, n))
        X, caches = self.read(self.head, caches, columns, n)
        return self.drawn(self.scores(_column(X, last)), n + last + 2 - self.lengths, tokens)[0], caches

    def ends(self, y: Int[Array, "B"]) -> Bool[Array, "B"]:
        """Return which tokens end their sequences."""
        return jnp.any(y[:, None] == self.sampling.eos, axis=1)


def _column(X: Float[Array, "d B m"], at: Int[Array, "B"]) -> Float[Array, "d B"]:
    return jnp.take_along_axis(X, at[None, :, None], axis=2)[..., 0]


def _written(of_slots: Array, values: Array, at: Int[Array, "B"], where: Bool[Array, "B"]) -> Array:
    rows = jnp.arange(len(at))
    return of_slots.at[rows, at].set(jnp.where(where, values.astype(of_slots.dtype), of_slots[rows, at]))


@functools.partial(jax.jit, donate_argnames=("caches", "of_head"))
def begun(model: Model, tokens: Int[Array, "B C"], caches: Any, of_head: Any, begins: Any, *, P: Any) -> Drafts:
    """Read prompts, which are padded to the length of P, draw a token behind each, and draft the next one."""
    x, l = tokens[:, : len(P)], model.lengths
    X, caches = model.read(model.weights, caches, x, jnp.zeros_like(l))
    y, log_p = model.drawn(model.scores(_column(X, l - 1)), jnp.zeros_like(l), tokens, begins)
    tokens = _written(tokens, y, l, l > 0)
    draft, of_head = model.drafted(of_head, X, tokens[:, 1 : len(P) + 1], jnp.zeros_like(l), l - 1, tokens)
    log_p = _written(jnp.zeros(tokens.shape, log_p.dtype), log_p, l, l > 0)
    none = jnp.zeros((), jnp.int32)
    return Drafts(tokens, log_p, l, draft, caches, of_head, model.ends(y), none, none)


@functools.partial(jax.jit, donate_argnames=("state",))
def extended(model: Model, state: Drafts, stop: Int[Array, ""]) -> Drafts:
    """Generate until every sequence has at least `stop` tokens or has ended."""

    def unfinished(state):
        return ~state.ended & (state.n + 1 < model.lengths + stop)

    def turn(state):
        n, goes_on, rows = state.n, unfinished(state), jnp.arange(len(state.n))
        i = n + 1 - model.lengths
        X, caches = model.read(model.weights, state.caches, jnp.stack([state.tokens[rows, n], state.draft], axis=1), n)
        scores, drafted = model.scores(X), _written(state.tokens, state.draft, n + 1, goes_on)
        (y, of_y), (z, of_z) = (model.drawn(scores[..., j], i + j, of) for j, of in enumerate((state.tokens, drafted)))
        accepted = goes_on & (y == state.draft) & ~model.ends(y)
        tokens, log_p = (_written(*of, n + 1, goes_on) for of in ((state.tokens, y), (state.log_p, of_y)))
        tokens, log_p = (_written(*of, n + 2, accepted) for of in ((tokens, z), (log_p, of_z)))
        last = accepted.astype(n.dtype)
        draft, of_head = model.drafted(state.of_head, X, jnp.stack([y, z], axis=1), n, last, tokens)
        ended = state.ended | (goes_on & model.ends(jnp.where(accepted, z, y)))
        counts = state.passes + goes_on.sum(dtype=jnp.int32), state.accepted + accepted.sum(dtype=jnp.int32)
        return Drafts(tokens, log_p, jnp.where(goes_on, n + 1 + last, n), draft, caches, of_head, ended, *counts)

    return jax.lax.while_loop(lambda state: jnp.any(unfinished(state)), turn, state)


class Drafter:
    """A decoder with a head for the token after the next, ready for many calls.

    Attributes:
        passes: of the model so far, of all sequences, besides those of prompts.
        accepted: drafts among these.
    """

    def __init__(self, generator: Generator) -> None:
        """Lay out the head of a generator's model. Raises ValueError if it has none."""
        theta = generator.theta
        if theta.mtp is None:
            raise ValueError(
                "theta.mtp: expected a head for the token after the next, got None; train one with --mtp-weight, or "
                "generate without drafts"
            )
        self.config, self.theta, self.weights = generator.config, theta, generator.weights
        if theta.W_p is not None:  # the last draft is read behind the last position
            self.weights = self.weights._replace(W_p=jnp.pad(theta.W_p, ((0, 0), (0, 1))))
        self.head = layout.unstacked(mtp_decoder(theta))
        self.passes = self.accepted = 0

    @property
    def acceptance(self) -> str:
        """The share of accepted drafts, in words."""
        share = self.accepted / max(1, self.passes)
        return f"{share:.1%} of {self.passes} drafts were accepted: {1 + share:.2f} tokens for each pass of the model"

    def answer(self, requests: Sequence[Request]) -> "DraftedContinuation":
        """Read requests, and return their continuation. Raises ValueError if a text would outgrow l_max."""
        check_requests(requests, self.config)
        lengths = np.array([len(request.tokens) for request in requests])
        inputs.check_room(lengths, max(request.l_gen for request in requests), self.config.l_max)
        return DraftedContinuation(self, requests, sampling_arrays(requests, self.config.N_V))


class DraftedContinuation:
    """The continuations of a batch of prompts, so far: `tokens`, `log_p` and `wanted` as in `Continuation`."""

    columns: Any = Continuation.columns

    def __init__(self, drafter: Drafter, requests: Sequence[Request], sampling: SamplingArrays) -> None:
        self._drafter, self.wanted, self._eos = drafter, max(r.l_gen for r in requests), np.asarray(sampling.eos)
        x, lengths = (a.astype(np.int32) for a in padded_rows([request.tokens for request in requests]))
        x, config = bucketed(x, drafter.config.l_max), drafter.config
        keys = jnp.stack([request.key for request in requests])
        lengths = jax.device_put(lengths)
        given = lengths if sampling.uses_history else None
        self._model = Model(drafter.weights, drafter.head, keys, sampling, lengths, given)
        C = capacity(x.shape[1] + self.wanted + 3)
        caches = _empty(drafter.theta, len(x), C), _empty(mtp_decoder(drafter.theta), len(x), C)
        tokens = jax.device_put(np.pad(x, ((0, 0), (0, C - x.shape[1]))))
        begins = begins_of(requests, config.N_V)
        self._state = begun(self._model, tokens, *caches, begins, P=np.zeros(x.shape[1], bool))
        self._take(0)

    def extend(self, n: int) -> None:
        """Generate until there are n tokens of each, or until all sequences have ended."""
        if not ((self._counts >= n) | self._ended).all():
            before = int(self._state.passes), int(self._state.accepted)
            self._state = extended(self._model, self._state, np.int32(n))
            self._drafter.passes += int(self._state.passes) - before[0]
            self._drafter.accepted += int(self._state.accepted) - before[1]
        self._take(n)

    def keep(self, r: int) -> None:
        """Keep nothing: every prompt is read whole."""

    def _take(self, n: int) -> None:
        """Copy the first n tokens of each sequence, with eos from its end on."""
        lengths = np.asarray(self._model.lengths)
        self._counts, self._ended = np.asarray(self._state.n) + 1 - lengths, np.asarray(self._state.ended)
        n = min(n, int(self._counts.max()))
        at = lengths[:, None] + np.arange(n)
        tokens, log_p = (np.take_along_axis(np.asarray(a), at, axis=1) for a in (self._state.tokens, self._state.log_p))
        behind = (np.arange(n) >= self._counts[:, None]) & self._ended[:, None]
        self.tokens, self.log_p = np.where(behind, self._eos[:, :1], tokens), np.where(behind, 0, log_p)


def _empty(theta: DTransformerParams, B: int, C: int) -> tuple[Any, ...]:
    """Return the caches of all layers for B sequences, before anything is read."""
    d_e, dtype, variant = len(theta.W_e), theta.W_e.dtype, theta.variant
    each = enumerate(of_each_layer(theta.layers, variant))
    shapes = [variant.attention_of(l).cache_shapes(W[0], d_e, dtype, (B,), C) for l, W in each]
    return tuple(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes))
