"""Prompts on their way: what was generated of each, and the state from which all of them go on."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, Key

from algorithms import DTransformerConfig, DTransformerParams
from algorithms.inside import Recorded
from training.generation import decoding, inputs, reading, states
from training.generation.cache import bucket, capacity
from training.generation.inside import Inside, Reading
from training.generation.layout import Weights
from training.generation.prefixes import Prefixes
from training.generation.repetition import History
from training.generation.sampling import SamplingArrays
from training.generation.states import Likeliest, State
from training.generation.windows import window_start

ROOM = 256
"""Tokens that a cache has room for from the beginning, so that a usual answer needs one compiled loop."""


REMEMBERED = 1024
"""Tokens that there is room for where all of them decide what may come, so that little is compiled."""


class Model(NamedTuple):
    """A decoder: its parameters, the same `layout.apart` for prompts, and laid out for single columns, its sizes, and
    what it keeps of texts.
    """

    theta: DTransformerParams
    apart: DTransformerParams
    weights: Weights
    config: DTransformerConfig
    prefixes: Prefixes | None = None
    inside: Inside | None = None

    @property
    def most(self) -> int | None:
        """How many tokens' keys and values are kept: the widest window's; None: all, if anything reads all of them."""
        in_full = self.prefixes is not None or self.inside is not None
        return None if in_full else states.widest_window(self.config.variant)

    def read(
        self, x: np.ndarray, lengths: np.ndarray, *, room: int = 1, prefill: Callable[..., State] = reading.prefill
    ) -> State:
        """Read prompts, padded on the right, with `prefill`; the caches get room for at least `room` tokens."""
        P = min(bucket(x.shape[1]), self.config.l_max)
        x = np.pad(x, ((0, 0), (0, P - x.shape[1])))
        C = capacity(P + 1 + room)
        if self.prefixes is not None and self.inside is None:
            return self.prefixes.read(self.theta, self.apart, x, lengths, config=self.config, C=C)
        theta = self.apart if self.inside is None else self.theta
        return prefill(theta, x, lengths, variant=self.config.variant, C=C, most=self.most)


class Continuation:
    """The continuations of prompts, as far as they have come.

    Where a text outgrows l_max, it goes on in the windows of `windows.window_start`. A window is read anew as a whole,
    and every token in it is then generated from the cache, so that a text of any length costs at most some three
    columns a token. All requests are read anew when one of them has to be.

    Attributes:
        tokens: the generated tokens, ``[B, n]``.
        log_p: their log-probabilities under the model, whatever they were drawn from; 0 behind the end.
        likeliest: the likeliest tokens in their place, and the log-probabilities of those, ``[B, n, N]`` each.
        starts: where the first token of each request stands in these: 0 but where it has joined the others later.
        ended: whether all of them have ended.
    """

    def __init__(
        self,
        model: Model,
        prompts: np.ndarray,
        lengths: np.ndarray,
        keys: Key[Array, "B"],
        sampling: SamplingArrays,
        begins: Bool[Array, "N_V B"] | None,
        *,
        l_gen: int,
        likeliest: int = 0,
    ) -> None:
        """Read prompts, padded on the right, to generate at most l_gen tokens of each, with a key for each. `begins`
        are the tokens that each continuation may begin with (None: all), and `likeliest` is N, how many of the
        likeliest tokens to note.
        """
        B = len(prompts)
        self._model, self._keys, self._sampling, self._begins, self._N = model, keys, sampling, begins, likeliest
        self._prompts = [x[:l] for x, l in zip(prompts, lengths, strict=True)]
        self.tokens = np.zeros((B, 0), np.int32)
        self.log_p = np.zeros((B, 0), model.theta.W_e.dtype)
        self.likeliest = (np.zeros((B, 0, likeliest), np.int32), np.zeros((B, 0, likeliest)))
        self.starts = np.zeros(B, np.int64)
        self.ended = False
        self._l_gen = l_gen
        self._reading = None if model.inside is None else Reading(model.inside)
        self._state = self._read_all()
        self._remember(l_gen)

    def extend(self, n: int) -> None:
        """Generate until there are n tokens in all, or until all sequences have ended."""
        while self.tokens.shape[1] < n and not self.ended:
            done = self.tokens.shape[1]
            if not self._room:
                self._begin_windows()
            first = int(self._state.slot)
            last = first + min(n - done, self._room)
            begins = self._begins if done in self.starts else None
            options = {"sampling": self._sampling, "variant": self._model.config.variant, "begins": begins}
            decode = decoding.decode if self._reading is None else self._reading.decode
            arguments = self._model.weights, None, self._state, self._keys, last, options, decode
            self._state = decoding.decode_until(*arguments, most=self._model.most)
            self._take(first + 1, int(self._state.slot) + 1)
            self.ended = int(self._state.slot) < last or bool(np.asarray(self._state.ended).all())

    def columns(self, n: int) -> Iterator[np.ndarray]:
        """Yield the tokens of all sequences, column by column, as they come: n of them, or until all have ended."""
        for i in range(n):
            self.extend(i + 1)
            if self.tokens.shape[1] == i:
                return
            yield self.tokens[:, i]

    def keep(self, r: int) -> None:
        """Let texts that begin as request r does, with what was generated of it, be read from there on."""
        if self._model.prefixes is not None and self._model.inside is None:
            self._model.prefixes.keep(self._state, r)

    def join(
        self,
        prompts: Int[np.ndarray, "b l"],
        *,
        lengths: Int[np.ndarray, "b"],
        keys: Key[Array, "b"],
        rows: Sequence[int],
        l_gen: int,
        sampling: SamplingArrays,
        begins: Bool[np.ndarray, "b N_V"] | None = None,
    ) -> None:
        """Continue some of the requests, and new ones beside them: `rows` says which, of the B that there are and the
        new ones after them. Nothing is kept of the others. Where there is room for the new prompts, padded on the
        right, only those are read. From now on at most l_gen tokens are generated; keys, `sampling` and `begins`, the
        tokens that a continuation may begin with, are those of the new requests.
        """
        x, lengths = inputs.checked("prompts", prompts, lengths, self._model.config, sliding=True)
        chosen, (b, n) = np.asarray(rows), (len(x), self.tokens.shape[1])
        new = [of_x[:l] for of_x, l in zip(x, lengths, strict=True)]
        if begins is not None:
            begins = np.concatenate([np.ones((len(self.starts), begins.shape[1]), bool), begins])[chosen].T
        self._begins = None if begins is None else jnp.asarray(begins)
        self._sampling = self._sampling.beside(sampling, chosen)
        self._prompts = [[*self._prompts, *new][r] for r in rows]
        self._keys = jnp.concatenate([self._keys, keys])[chosen]
        starts = np.concatenate([self.starts, np.full(b, n)])[chosen]
        kept = slice(starts.min(), None)

        def both(before):
            return np.concatenate([before, np.zeros((b, *before.shape[1:]), before.dtype)])[chosen][:, kept]

        self.starts, self.ended = starts - starts.min(), False
        self.tokens, self.log_p = both(self.tokens), both(self.log_p)
        self.likeliest = (both(self.likeliest[0]), both(self.likeliest[1]))
        self._place(new, chosen)
        self._remember(l_gen)

    def copy(self) -> "Continuation":
        """Return the same continuations once more, which go on without these."""
        other = copy.copy(self)
        other._state = jax.tree.map(jnp.copy, self._state)  # decoding uses the memory of the state again
        prefixes = self._model.prefixes
        other._model = self._model._replace(prefixes=None if prefixes is None else prefixes.copy())
        other._reading = None if self._reading is None else self._reading.copy()
        return other

    def shapes_to_join(
        self,
        prompts: Int[np.ndarray, "b l"],
        *,
        lengths: Int[np.ndarray, "b"],
        rows: Sequence[int],
        sampling: SamplingArrays,
        begins: Bool[np.ndarray, "b N_V"] | None = None,
        **_: Any,
    ) -> tuple[Any, ...]:
        """Return what decides whether `join`, with these arguments, needs programs that were not compiled yet."""
        slots, l = self._state.tokens.shape[1], int(np.max(lengths))
        fits = self._room > 0 and l <= int(self._state.slot) + 1
        longest = 0 if fits else bucket(max(l, *(len(text) for text in self._texts())))
        both = self._sampling.beside(sampling, np.asarray(rows))
        drawn = (both.eos.shape[1], both.logit_bias is None, both.uses_history)
        return (prompts.shape[0], bucket(l), len(self.starts), len(rows), slots, longest, begins is None, *drawn)

    def _place(self, new: list[np.ndarray], rows: np.ndarray) -> None:
        """Let new prompts go on from the slot of the others, or all of them from a new one."""
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
        """Return the tokens of each request so far."""
        of_rows = zip(self._prompts, self.tokens, self.starts, strict=True)
        return [np.concatenate([x, y[start:]]) for x, y, start in of_rows]

    def seen(self) -> list[Recorded]:
        """What was recorded of each request, as `record` gives it of one pass over the tokens before its last one.

        Where a text has outgrown l_max, these are the tokens of its window.
        """
        return [] if self._reading is None else self._reading.seen()

    def _read_all(self) -> State:
        """Read all texts so far."""
        state = self._read(self._texts())
        if self._reading is not None:
            self._reading.choose(range(len(self._prompts)))
        return state

    def _read(self, texts: list[np.ndarray]) -> State:
        """Read the window of each text, one that several have only once."""
        l_max = self._model.config.l_max
        of_texts = [text[window_start(len(text), l_max) :] for text in texts]
        numbers: dict[bytes, int] = {}
        rows = [numbers.setdefault(np.asarray(window, np.int32).tobytes(), len(numbers)) for window in of_texts]
        windows = [of_texts[rows.index(i)] for i in range(len(numbers))]
        windows += windows[:1] * ((1 << (len(windows) - 1).bit_length()) - len(windows))  # so that little is compiled
        windows = windows if len(windows) < len(texts) else of_texts
        x, lengths = (array.astype(np.int32) for array in inputs.padded_rows(windows))
        self._room = l_max - int(lengths.max()) + 1
        begun = self.tokens.shape[1] > 0
        room = self._room if begun else min(self._l_gen, self._room, ROOM)
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
        """Go on with the next windows."""
        before, drawn = self._state, self.tokens.shape[1] - self.starts
        drawn = jnp.asarray(drawn, jnp.int32)
        self._state = self._read_all()._replace(drawn=drawn, ended=before.ended, history=before.history)

    def _remember(self, l_gen: int) -> None:
        """Let all tokens decide what may come, where they do, with room for so many more."""
        if not self._sampling.uses_history:
            return
        texts = self._texts()
        lengths = np.array([len(text) for text in texts], np.int32)
        given = np.array([len(prompt) for prompt in self._prompts], np.int32)
        T = capacity(max(int(lengths.max()) + l_gen, REMEMBERED))
        padded = np.stack([np.pad(text, (0, T - len(text))) for text in texts])
        self._state = self._state._replace(history=History(*map(jnp.asarray, (padded, lengths, given))))

    def _take(self, first: int, end: int) -> None:
        """Take note of what is in the new slots."""
        new = slice(first, end)
        self._room -= end - first
        self.tokens = np.concatenate([self.tokens, np.asarray(self._state.tokens[:, new])], axis=1)
        self.log_p = np.concatenate([self.log_p, np.asarray(self._state.log_p[:, new])], axis=1)
        if self._state.likeliest is None:
            tokens = log_p = np.zeros((len(self.tokens), end - first, 0))
        else:
            tokens, log_p = (np.asarray(of_slots[:, new]) for of_slots in self._state.likeliest)
        before = self.likeliest
        self.likeliest = (np.concatenate([before[0], tokens], axis=1), np.concatenate([before[1], log_p], axis=1))
