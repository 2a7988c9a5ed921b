"""A decoder that generates, and the continuations of a batch of prompts: their tokens, and the state to go on."""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Required, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from algorithms import DTransformerConfig, DTransformerParams
from algorithms.inside import At, Recorded
from algorithms.machinery.contract import check_key
from training.generation import decoding, inputs, layout, reading, states
from training.generation.cache import bucket, bucketed, capacity
from training.generation.inputs import Lengths, Tokens
from training.generation.inside import Inside, Reading
from training.generation.prefixes import Prefixes
from training.generation.requests import Request, begins_of, check_requests, keys_of
from training.generation.sampling import History, Sampling, SamplingArrays
from training.generation.states import Likeliest, State

ROOM = 256  # tokens that a new cache has room for, so that a typical answer needs one compiled loop
REMEMBERED = 1024  # initial room for tokens in a `History`, so that few programs are compiled


class Requests(Sampling, total=False):
    """The arguments of `generate` that `Generator` takes for each call."""

    lengths: Required[Lengths]
    l_gen: Required[int]
    key: Required[Key[Array, "*B"]]
    sliding: bool


def window_start(t: int, l_max: int) -> int:
    """Return the index of the first token that token t of a text, counted from 0, is predicted from.

    The first window begins with the text and predicts its tokens up to token l_max. Each new window begins with the
    last half of the one before. So every token is predicted from at least l_max/2 and at most l_max tokens before it,
    or from all.

    Example:
        >>> [window_start(t, 6) for t in range(15)]
        [0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8]
    """
    stride = l_max + 1 - max(1, l_max // 2)
    return max(0, -(-(t - l_max) // stride)) * stride


class Generator:
    """A decoder that is ready for many calls; see `generate`."""

    def __init__(
        self,
        theta: DTransformerParams,
        config: DTransformerConfig,
        *,
        prefixes: Prefixes | None = None,
        changes: Mapping[str, Any] | Mapping[At, Any] | None = None,
        names: Sequence[str] = (),
        int8: bool = False,
    ) -> None:
        """Lay out the parameters.

        `prefixes` caches keys and values, so that a prompt is read only from where it differs from an earlier text;
        `changes` and `names` turn it off: the former are applied to every token, as by `algorithms.inside.intervene`,
        the latter recorded for `Continuation.seen`. `int8` rounds the matrices that every generated token reads, not
        those that read prompts.
        """
        inputs.check_model(theta, config, DTransformerParams, DTransformerConfig)
        self.theta, self.config, self.prefixes = theta, config, prefixes
        self.apart = layout.apart(theta)
        self.weights = layout.unstacked(self.apart, int8=int8)
        self.inside = Inside(changes or {}, names, config.L) if changes or names else None

    def generate(self, prompts: Tokens, **requests: Unpack[Requests]) -> Int[Array, "B l_gen"]:
        """Continue prompts; see the function `generate`."""
        continuation, l_gen = self.begin(prompts, **requests), requests["l_gen"]
        continuation.extend(l_gen)
        missing = l_gen - continuation.tokens.shape[1]
        fill = max(0, int(continuation.sampling.eos[0, 0]))
        return jnp.asarray(np.pad(continuation.tokens, ((0, 0), (0, missing)), constant_values=fill))

    def stream(self, prompts: Tokens, **requests: Unpack[Requests]) -> Iterator[np.ndarray]:
        """Yield the columns of what `generate` returns as they are generated, until all sequences have ended."""
        yield from self.begin(prompts, **requests).columns(requests["l_gen"])

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
    def most(self) -> int | None:
        """How many tokens the cache keeps: the width of the widest window; None for all, if anything reads them all."""
        in_full = self.prefixes is not None or self.inside is not None
        return None if in_full else states.widest_window(self.config.variant)

    def read(
        self, x: np.ndarray, lengths: np.ndarray, *, room: int = 1, prefill: Callable[..., State] = reading.prefill
    ) -> State:
        """Read prompts, padded on the right, with `prefill`, into caches with room for at least `room` more tokens."""
        x = bucketed(x, self.config.l_max)
        C = capacity(x.shape[1] + 1 + room)
        if self.prefixes is not None and self.inside is None:
            return self.prefixes.read(self, x, lengths, C=C)
        theta = self.apart if self.inside is None else self.theta
        return prefill(theta, x, lengths, C=C, most=self.most)


class Continuation:
    """The continuations of a batch of prompts, so far. A text that outgrows l_max continues in the windows of
    `window_start`, which are read in one forward pass each, of all requests when one needs a new one; further tokens
    come from the cache: at most about three columns per token, however long the text.
    """

    def __init__(self, model: Generator, requests: Sequence[Request], *, likeliest: int = 0) -> None:
        """Read the prompts of requests, as `check_requests` permits them; `likeliest` is N."""
        B = len(requests)
        self._model, self._N, self._requests = model, likeliest, list(requests)
        self.tokens = np.zeros((B, 0), np.int32)  # generated, [B, n]
        self.log_p = np.zeros((B, 0), model.theta.W_e.dtype)  # under the model, however they are drawn; 0 after the end
        # the N likeliest tokens at each position and their log-probabilities, [B, n, N] each
        self.likeliest = (np.zeros((B, 0, likeliest), np.int32), np.zeros((B, 0, likeliest)))
        self.starts = np.zeros(B, np.int64)  # the index of each request's first token; 0 unless it joined later
        self._reading = None if model.inside is None else Reading(model.inside)
        self._begin()
        self._state = self._read_all()
        self._remember()

    def extend(self, n: int) -> None:
        """Generate until there are n tokens in total, or until all sequences have ended."""
        while self.tokens.shape[1] < n and not self.ended:
            done = self.tokens.shape[1]
            if not self._room:
                self._begin_windows()
            first = int(self._state.slot)
            last = first + min(n - done, self._room)
            begins = self._begins if done in self.starts else None
            decode = decoding.decode if self._reading is None else self._reading.decode
            options = {"keys": self._keys, "sampling": self.sampling, "begins": begins}
            advance = functools.partial(decode, self._model.weights, None, **options)
            self._state = decoding.grown_until(last, self._state, advance, self._model.most)
            self._take(first + 1, int(self._state.slot) + 1)
            self.ended = int(self._state.slot) < last or bool(np.asarray(self._state.ended).all())

    def columns(self, n: int) -> Iterator[np.ndarray]:
        """Yield the first n columns of tokens as they are generated, or those until all sequences have ended."""
        for i in range(n):
            self.extend(i + 1)
            if self.tokens.shape[1] == i:
                return
            yield self.tokens[:, i]

    def keep(self, r: int) -> None:
        """Cache the keys and values of request r and its continuation for later texts that begin the same."""
        if self._model.prefixes is not None and self._model.inside is None:
            self._model.prefixes.keep(self._state, r)

    def join(self, requests: Sequence[Request], *, keep: Sequence[int]) -> None:
        """Continue some of the requests, together with new ones: `keep` are indices into the B present requests
        followed by the new ones, and the rest are dropped. If the new prompts fit into the cache, only they are read;
        otherwise all are read again. Raises TypeError or ValueError as `check_requests`.
        """
        check_requests(requests, self._model.config)
        rows, (b, n) = np.asarray(keep), (len(requests), self.tokens.shape[1])
        starts = np.concatenate([self.starts, np.full(b, n)])[rows]

        def kept(before: Any) -> np.ndarray:
            return np.concatenate([before, np.zeros((b, *before.shape[1:]), before.dtype)])[rows][:, starts.min() :]

        self.tokens, self.log_p, self.likeliest = jax.tree.map(kept, (self.tokens, self.log_p, self.likeliest))
        self._requests, self.starts = self._kept(requests, keep), starts - starts.min()
        self._begin()
        self._place([np.asarray(request.tokens) for request in requests], rows)
        self._remember()

    def _kept(self, requests: Sequence[Request], keep: Sequence[int]) -> list[Request]:
        return [[*self._requests, *requests][r] for r in keep]

    def _begin(self) -> None:
        """Lay out how the tokens of all requests are drawn."""
        N_V, self.ended = self._model.config.N_V, False
        self._keys = jnp.stack([request.key for request in self._requests])
        self.sampling = SamplingArrays.of([request.sampling for request in self._requests], N_V)
        self._begins = begins_of(self._requests, N_V)

    def copy(self) -> "Continuation":
        """Return an independent copy."""
        other = copy.copy(self)
        other._state = jax.tree.map(jnp.copy, self._state)  # decoding donates the state
        other._model = copy.copy(self._model)
        if self._model.prefixes is not None:
            other._model.prefixes = self._model.prefixes.copy()
        other._reading = None if self._reading is None else self._reading.copy()
        return other

    def shapes_to_join(self, requests: Sequence[Request], *, keep: Sequence[int]) -> tuple[Any, ...]:
        """Return a key for the programs that `join` with these arguments needs: equal keys need the same programs."""
        slots, l = self._state.tokens.shape[1], max(len(request.tokens) for request in requests)
        fits = self._room > 0 and l <= int(self._state.slot) + 1
        longest = 0 if fits else bucket(max(l, *(len(text) for text in self._texts())))
        all_kept = self._kept(requests, keep)
        both = SamplingArrays.of([request.sampling for request in all_kept], self._model.config.N_V)
        begins = any(request.begins is not None for request in all_kept)
        drawn = (both.eos.shape[1], both.logit_bias is None, both.uses_history)
        return (len(requests), bucket(l), len(self.starts), len(keep), slots, longest, begins, *drawn)

    def _place(self, new: list[np.ndarray], rows: np.ndarray) -> None:
        """Place new prompts beside the others in the cache if they fit; otherwise read all texts again."""
        before, l_max = self._state, self._model.config.l_max
        slot, longest = int(before.slot), max(len(x) - window_start(len(x), l_max) for x in new)
        room = min(self._room, l_max - longest + 1, 2 * l_max - slot)
        if room > 0 and longest <= slot + 1:
            self._state = states.joined(before, self._read(new), jnp.asarray(rows))
            self._room = room
            if self._reading is not None:
                self._reading.choose(rows.tolist(), beside=True)
        else:
            self._state = before._replace(ended=jnp.concatenate([before.ended, jnp.zeros(len(new), bool)])[rows])
            self._begin_windows()

    def _texts(self) -> list[np.ndarray]:
        """Return the tokens of each request so far, its prompt included."""
        of_rows = zip(self._requests, self.tokens, self.starts, strict=True)
        return [np.concatenate([np.asarray(x.tokens, np.int32), y[start:]]) for x, y, start in of_rows]

    def seen(self) -> list[Recorded]:
        """What `record` gives of each request for one pass over its tokens, past l_max of its window, but the last."""
        return [] if self._reading is None else self._reading.seen()

    def _read_all(self) -> State:
        state = self._read(self._texts())
        if self._reading is not None:
            self._reading.choose(range(len(self._requests)))
        return state

    def _read(self, texts: list[np.ndarray]) -> State:
        """Read the window of each text; a window that several texts share is read once."""
        l_max = self._model.config.l_max
        of_texts = [text[window_start(len(text), l_max) :] for text in texts]
        numbers: dict[bytes, int] = {}
        rows = [numbers.setdefault(np.asarray(window, np.int32).tobytes(), len(numbers)) for window in of_texts]
        windows = inputs.to_power_of_two([of_texts[rows.index(i)] for i in range(len(numbers))])
        windows = windows if len(windows) < len(texts) else of_texts
        x, lengths = (array.astype(np.int32) for array in inputs.padded_rows(windows))
        self._room = l_max - int(lengths.max()) + 1
        begun = self.tokens.shape[1] > 0
        room = self._room if begun else min(self._l_gen(), self._room, ROOM)
        prefill = reading.prefill if self._reading is None else self._reading.prefill
        state = self._model.read(x, lengths, room=room, prefill=prefill)
        if len(windows) < len(texts):
            state = states.chosen(state, jnp.asarray(rows))
            if self._reading is not None:
                self._reading.latest = [self._reading.latest[r] for r in rows]
        if self._N:
            shape = (*state.tokens.shape, self._N)
            likeliest = Likeliest(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, state.log_p.dtype))
            state = state._replace(likeliest=likeliest)
        return state

    def _begin_windows(self) -> None:
        before, drawn = self._state, jax.device_put((self.tokens.shape[1] - self.starts).astype(np.int32))
        self._state = self._read_all()._replace(drawn=drawn, ended=before.ended, history=before.history)

    def _l_gen(self) -> int:
        return max(request.l_gen for request in self._requests)

    def _remember(self) -> None:
        """If any request's sampling uses its history, put all tokens into the state, with room for those to come."""
        if not self.sampling.uses_history:
            return
        texts = self._texts()
        lengths = np.array([len(text) for text in texts], np.int32)
        given = np.array([len(request.tokens) for request in self._requests], np.int32)
        T = capacity(max(int(lengths.max()) + self._l_gen(), REMEMBERED))
        padded = np.stack([np.pad(text, (0, T - len(text))) for text in texts])
        self._state = self._state._replace(history=History(*map(jnp.asarray, (padded, lengths, given))))

    def _take(self, first: int, end: int) -> None:
        """Append the contents of the new slots."""
        self._room -= end - first
        state, none = self._state, np.zeros((len(self.tokens), end, 0))

        def appended(before: Any, of_slots: Any) -> np.ndarray:
            return np.concatenate([before, np.asarray(of_slots)[:, first:end]], axis=1)

        so_far = self.tokens, self.log_p, self.likeliest
        written = state.tokens, state.log_p, tuple(state.likeliest or (none, none))
        self.tokens, self.log_p, self.likeliest = jax.tree.map(appended, so_far, written)
