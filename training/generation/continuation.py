"""A decoder that generates, and the continuations of a batch of prompts: their tokens, and the state to go on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Required, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from algorithms import DTransformerConfig, DTransformerParams
from algorithms.inside import At
from algorithms.machinery.contract import check_key
from training.generation import decoding, inputs, layout, prefilling, prompts, states
from training.generation.buckets import capacity
from training.generation.cache import rows_of_parts
from training.generation.inputs import Lengths, Tokens
from training.generation.inside import changed
from training.generation.prefixes import Prefixes
from training.generation.prompts import ROOM, ReadPrompts
from training.generation.requests import Request, begins_of, check_requests, keys_of, permitting, sampling_arrays
from training.generation.sampling import History, Sampling
from training.generation.states import State

REMEMBERED = 1024  # initial room for tokens in a `History`, so that few programs are compiled


class CallArguments(Sampling, total=False):
    """The arguments of `generate` that `Generator` takes for each call."""

    lengths: Required[Lengths]
    l_gen: Required[int]
    key: Required[Key[Array, "*B"]]
    sliding: bool


class Generator:
    """A decoder that is ready for many calls; see `generate`."""

    def __init__(
        self,
        theta: DTransformerParams,
        config: DTransformerConfig,
        *,
        prefixes: Prefixes | None = None,
        changes: Mapping[str, Any] | Mapping[At, Any] | None = None,
        int8: bool = False,
    ) -> None:
        """Lay out the parameters.

        `prefixes` caches keys and values, so that a prompt is read only from where it differs from an earlier text;
        `changes` turn it off, and are applied to every token, as by `algorithms.inside.intervene`. `int8` rounds the
        matrices that every generated token reads, not those that read prompts.
        """
        inputs.check_model(theta, config, DTransformerParams, DTransformerConfig)
        if prefixes is not None:
            prefixes.check(config.variant)
        self.theta, self.config, self.prefixes = theta, config, prefixes
        self.apart = layout.apart(theta)
        self.weights = layout.unstacked(self.apart, int8=int8)
        self.is_changed = bool(changes)
        self.prefill, self.decode = changed(changes) if changes else (prefilling.prefill, decoding.decode)

    def generate(self, prompts: Tokens, **requests: Unpack[CallArguments]) -> Int[Array, "B l_gen"]:
        """Continue prompts; see the function `generate`."""
        continuation, l_gen = self.begin(prompts, **requests), requests["l_gen"]
        continuation.extend(l_gen)
        missing = l_gen - continuation.tokens.shape[1]
        fill = max(0, int(continuation.sampling.eos[0, 0]))
        return jnp.asarray(np.pad(continuation.tokens, ((0, 0), (0, missing)), constant_values=fill))

    def stream(self, prompts: Tokens, **requests: Unpack[CallArguments]) -> Iterator[np.ndarray]:
        """Yield the columns of what `generate` returns as they are generated, until all sequences have ended."""
        yield from self.begin(prompts, **requests).columns()

    def begin(
        self,
        prompts: Tokens,
        *,
        lengths: Lengths,
        l_gen: int,
        key: Key[Array, "*B"],
        sliding: bool = False,
        likeliest: int = 0,
        **sampling: Unpack[Sampling],
    ) -> "Continuation":
        """Read prompts, and return their `Continuation`, which records the `likeliest` tokens at each position, too."""
        inputs.check_count("l_gen", l_gen)
        check_key("key", key)
        x, lengths = inputs.checked("prompts", prompts, lengths, self.config, sliding=sliding)
        if not sliding:
            inputs.check_room(lengths, l_gen, self.config.l_max)
        keys = key if key.ndim else keys_of(key, len(x), 0)
        if len(keys) != len(x):
            raise ValueError(f"key: expected one key, or one for each of the {len(x)} requests, got {len(keys)}")
        of_rows = zip(x, lengths, keys, strict=True)
        return self.answer([Request(x[:l], key, l_gen, sampling) for x, l, key in of_rows], likeliest=likeliest)

    def answer(self, requests: Sequence[Request], *, likeliest: int = 0) -> "Continuation":
        """Read requests, each with its own sampling, which may slide past l_max, and return their `Continuation`."""
        check_requests(requests, self.config)
        return Continuation(self, requests, likeliest=likeliest)

    @property
    def limits(self) -> states.Limits:
        """Number of tokens that the cache of each layer keeps: those in its window, unless anything reads them all."""
        in_full = self.prefixes is not None or self.is_changed
        return (None,) * self.config.L if in_full else states.windows(self.config.variant, self.config.L)


class Continuation:
    """The continuations of a batch of prompts, so far. A text that outgrows l_max continues in the windows of
    `window_start`, which are read in one forward pass each, of all requests when one needs a new one; further tokens
    come from the cache: at most about three columns per token, however long the text.

    Attributes:
        tokens: generated, ``[B, n]``; eos from a sequence's end on.
        log_p: the log-probability of each, ``[B, n]``, under the model: at temperature 1, among all tokens, whatever
            `Sampling` draws them with. 0 after the end.
        likeliest: the N likeliest tokens at each position and their log-probabilities, ``[B, n, N]`` each.
        starts: the index of each request's first token; 0 unless it joined later.
        ended: whether all sequences have ended.
        sampling: how the tokens of each request are drawn.
        left: how many tokens each request can be followed by before it needs a new window.
    """

    def __init__(self, model: Generator, requests: Sequence[Request], *, likeliest: int = 0) -> None:
        """Read the prompts of requests, or of none, so that others can join; `likeliest` is N."""
        B = len(requests)
        self._model, self._N, self._requests = model, likeliest, list(requests)
        self.tokens, self.log_p = np.zeros((B, 0), np.int32), np.zeros((B, 0), model.theta.W_e.dtype)
        self.likeliest = (np.zeros((B, 0, likeliest), np.int32), np.zeros((B, 0, likeliest)))
        self.starts = np.zeros(B, np.int64)
        self.left = np.zeros(B, np.int64)
        self._state: Any = None
        if requests:
            self._begin()
            self._read_windows()
            self._remember()

    def extend(self, n: int) -> None:
        """Generate until there are n tokens in total, or until all sequences have ended."""
        while self.tokens.shape[1] < n and not self.ended:
            done = self.tokens.shape[1]
            if not self.left.min():
                self._read_windows()
            if self.is_full:
                self._state = states.grow(self._state, C=2 * self.slots)
            first, sampling = int(self._state.slot), self.sampling
            last = min(first + min(1 if self._permits else n - done, int(self.left.min())), self.slots - 1)
            if self._permits:
                sampling = permitting(sampling, self._requests, self._generated())
            begins = self._begins if done in self.starts else None
            options = {"keys": self._keys, "stop": np.int32(last), "sampling": sampling, "begins": begins}
            self._state = self._model.decode(self._model.weights, None, self._state, **options)
            self._take(first + 1, int(self._state.slot) + 1)
            self.ended = int(self._state.slot) < last or bool(np.asarray(self._state.ended).all())

    @property
    def wanted(self) -> int:
        """Number of tokens once every request has all that it asked for."""
        return self.tokens.shape[1] + self._missing

    def columns(self) -> Iterator[np.ndarray]:
        """Yield the columns of tokens as they are generated, until all sequences have ended or what they asked for."""
        for i in range(self.wanted):
            self.extend(i + 1)
            if self.tokens.shape[1] == i:
                return
            yield self.tokens[:, i]

    def keep(self, r: int) -> None:
        """Cache the keys and values of request r and its continuation for later texts that begin the same."""
        if self._model.prefixes is not None and not self._model.is_changed:
            text = self._texts()[r][:-1]  # the last token has not been read
            cached = self._model.config.l_max - int(self.left[r])
            self._model.prefixes.keep(self._state, r, text[len(text) - cached :])

    def drop(self, r: int) -> None:
        """Let request r no longer begin windows, since nobody reads its tokens."""
        self.left[r] = self._model.config.l_max

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self._state.tokens.shape[1]

    @property
    def is_full(self) -> bool:
        """Whether the next token has no slot, so the cache has to grow, unless sequences that have ended leave room."""
        return int(self._state.slot) + 1 >= self.slots

    def join(
        self,
        requests: Sequence[Request],
        *,
        keep: Sequence[int],
        read: ReadPrompts | None = None,
        slots: Callable[[int], int] = int,
    ) -> None:
        """Continue some of the requests, together with new ones, which are read now if they have not been: `keep` are
        indices into the B present requests followed by the new ones, and the rest are dropped. There are ``slots(n)``
        slots if they need n. Raises TypeError or ValueError as `check_requests`.
        """
        if requests and read is None:
            check_requests(requests, self._model.config)
            read = prompts.read(self._model, [np.asarray(request.tokens) for request in requests], more=1)
        l_max, (B, n), b, rows = self._model.config.l_max, self.tokens.shape, len(requests), np.asarray(keep)
        starts = np.concatenate([self.starts, np.full(b, n)])[rows]
        lengths = np.asarray(read.state.lengths)[read.rows] if read else np.zeros(0, np.int64)

        def kept(before: Any) -> np.ndarray:
            return np.concatenate([before, np.zeros((b, *before.shape[1:]), before.dtype)])[rows][:, starts.min() :]

        self.tokens, self.log_p, self.likeliest = jax.tree.map(kept, (self.tokens, self.log_p, self.likeliest))
        self._requests = [[*self._requests, *requests][r] for r in keep]
        self.starts, self.left = starts - starts.min(), np.concatenate([self.left, l_max - lengths + 1])[rows]
        self._begin()
        left, before, self._state = int(self.left.min()), self._state, None
        C = slots(capacity(l_max - left + 1 + max(1, min(self._missing, ROOM, left))))
        given = [state for state in (before, read and read.state) if state is not None]
        del before  # so that its caches are freed one by one
        of_state = np.array([*range(B), *(B + row for row in (read.rows if read else ()))])[rows]
        self._state = self._placed(given, of_state, slot=l_max - left, C=C)
        drawn = self._drawn() - (l_max - left - np.asarray(self._state.first))
        self._state = self._state._replace(drawn=jax.device_put(drawn.astype(np.int32)))
        self._remember()

    def _placed(self, given: list[State], rows: Any, *, slot: int, C: int) -> State:
        n = rows_of_parts(self._model.theta, len(rows))
        return states.placed(given, jnp.asarray(rows), slot=slot, C=C, n=n, N=self._N)

    def _begin(self) -> None:
        """Lay out how the tokens of all requests are drawn."""
        N_V, self.ended = self._model.config.N_V, False
        self._keys = jnp.stack([request.key for request in self._requests])
        self.sampling = sampling_arrays(self._requests, N_V)
        self._permits = any(request.permits is not None for request in self._requests)
        self._begins = begins_of(self._requests, N_V)

    def _texts(self) -> list[np.ndarray]:
        """Return the tokens of each request so far, its prompt included."""
        of_rows = zip(self._requests, self.tokens, self.starts, strict=True)
        return [np.concatenate([np.asarray(x.tokens, np.int32), y[start:]]) for x, y, start in of_rows]

    def _generated(self) -> list[np.ndarray]:
        """Return the generated tokens of each request."""
        return [text[len(x.tokens) - x.drawn :] for x, text in zip(self._requests, self._texts(), strict=True)]

    def _drawn(self) -> np.ndarray:
        """Return how many tokens of each request have been drawn."""
        return self.tokens.shape[1] - self.starts + [request.drawn for request in self._requests]

    def _read_windows(self) -> None:
        """Read the windows of all texts, with room for what is still to be generated."""
        before, l_max = self._state, self._model.config.l_max
        read = prompts.read(self._model, self._texts(), more=self._missing)
        self.left = l_max - np.asarray(read.state.lengths)[read.rows].astype(np.int64) + 1
        state = read.state
        if self._N or read.rows != list(range(len(state.tokens))):
            state = self._placed([state], read.rows, slot=int(state.slot), C=state.tokens.shape[1])
        if before is not None:
            drawn = jax.device_put(self._drawn().astype(np.int32))
            state = state._replace(drawn=drawn, ended=before.ended, history=before.history)
        self._state = state

    @property
    def _missing(self) -> int:
        """The most tokens that a request has still asked for."""
        each = zip(self._requests, self.starts, strict=True)
        return max(request.l_gen + int(start) for request, start in each) - self.tokens.shape[1]

    def _remember(self) -> None:
        """If any request's sampling uses its history, put all tokens into the state."""
        if not self.sampling.uses_history:
            return
        texts = self._texts()
        lengths = np.array([len(text) for text in texts], np.int32)
        given = np.array([len(request.tokens) - request.drawn for request in self._requests], np.int32)
        T = capacity(max(int(lengths.max()) + max(request.l_gen for request in self._requests), REMEMBERED))
        padded = np.stack([np.pad(text, (0, T - len(text))) for text in texts])
        self._state = self._state._replace(history=History(*map(jnp.asarray, (padded, lengths, given))))

    def _take(self, first: int, end: int) -> None:
        """Append the contents of the new slots."""
        self.left -= end - first
        state, none = self._state, np.zeros((len(self.tokens), end, 0))

        def appended(before: Any, of_slots: Any) -> np.ndarray:
            return np.concatenate([before, np.asarray(of_slots)[:, first:end]], axis=1)

        so_far = self.tokens, self.log_p, self.likeliest
        written = state.tokens, state.log_p, tuple(state.likeliest or (none, none))
        self.tokens, self.log_p, self.likeliest = jax.tree.map(appended, so_far, written)
