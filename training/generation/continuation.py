"""Prompts on their way: what was generated of each, and the state from which all of them go on."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Key

from algorithms import DTransformerConfig, DTransformerParams
from training.generation import decoding
from training.generation.cache import bucket, capacity
from training.generation.decoding import Likeliest, State, Weights
from training.generation.repetition import History
from training.generation.windows import window_start

__all__ = ["Continuation", "Model"]


class Model(NamedTuple):
    """A decoder: its parameters, the same laid out for single columns, its sizes, and its variant without dropout."""

    theta: DTransformerParams
    weights: Weights
    config: DTransformerConfig

    def read(self, x: np.ndarray, lengths: np.ndarray, *, room: int = 1) -> State:
        """Read prompts, padded on the right, with the forward pass of whole sequences.

        Args:
            x: the prompts.
            lengths: of each.
            room: how many tokens the caches are to have room for, at least.
        """
        P = min(bucket(x.shape[1]), self.config.l_max)
        x = np.pad(x, ((0, 0), (0, P - x.shape[1])))
        return decoding.prefill(self.theta, x, lengths, variant=self.config.variant, C=capacity(P + 1 + room))


class Continuation:
    """The continuations of prompts, as far as they have come.

    Where a text outgrows l_max, it goes on in the windows of `windows.window_start`. A window is read anew as a whole,
    and every token in it is then generated from the cache, so that a text of any length costs at most some three
    columns a token. All requests are read anew when one of them has to be.

    Attributes:
        tokens: the generated tokens, ``[B, n]``.
        log_p: their log-probabilities under the model, whatever they were drawn from; 0 behind the end.
        likeliest: the likeliest tokens in their place, and the log-probabilities of those, ``[B, n, N]`` each.
        ended: whether all of them have ended.
    """

    def __init__(
        self,
        model: Model,
        prompts: np.ndarray,
        lengths: np.ndarray,
        keys: Key[Array, "B"],
        options: dict[str, Any],
        *,
        l_gen: int,
        likeliest: int = 0,
    ) -> None:
        """Read the prompts.

        Args:
            model: the decoder.
            prompts: padded on the right.
            lengths: of each.
            keys: one for each.
            options: how tokens are drawn, as `decoding.decode` takes it.
            l_gen: how many tokens to generate at most.
            likeliest: N, how many of the likeliest tokens to note.
        """
        B = len(prompts)
        self._model, self._keys, self._options, self._N = model, keys, options, likeliest
        self._prompts, self._lengths = prompts, lengths
        self.tokens = np.zeros((B, 0), np.int32)
        self.log_p = np.zeros((B, 0), model.theta.W_e.dtype)
        self.likeliest = (np.zeros((B, 0, likeliest), np.int32), np.zeros((B, 0, likeliest)))
        self.ended = False
        self._state = self._read()
        if options["repetition_penalty"] is not None or options["no_repeat_ngram_size"]:
            T = bucket(prompts.shape[1] + l_gen)
            tokens = np.where(np.arange(prompts.shape[1]) < lengths[:, None], prompts, 0)
            padded = np.pad(tokens, ((0, 0), (0, T - prompts.shape[1])))
            self._state = self._state._replace(history=History(jnp.asarray(padded), jnp.asarray(lengths)))

    def extend(self, n: int) -> None:
        """Generate until there are n tokens in all, or until all sequences have ended."""
        while self.tokens.shape[1] < n and not self.ended:
            done = self.tokens.shape[1]
            if not self._room:
                self._begin_windows()
            first = int(self._state.slot)
            last = first + min(n - done, self._room)
            options = self._options if done == 0 else {**self._options, "begins": None}
            self._state = decoding.decoded(self._model.weights, None, self._state, self._keys, last, options)
            self._take(first + 1, int(self._state.slot) + 1)
            self.ended = int(self._state.slot) < last or bool(np.asarray(self._state.ended).all())

    def _read(self) -> State:
        """Read the window of each text."""
        rows = [np.concatenate([x[:l], y]) for x, l, y in zip(self._prompts, self._lengths, self.tokens, strict=True)]
        l_max = self._model.config.l_max
        windows = [row[window_start(len(row), l_max) :] for row in rows]
        lengths = np.array([len(window) for window in windows], np.int32)
        self._room = l_max - int(lengths.max()) + 1
        x = np.zeros((len(rows), lengths.max()), np.int32)
        for of_x, window in zip(x, windows, strict=True):
            of_x[: len(window)] = window
        begun = self.tokens.shape[1] > 0
        state = self._model.read(x, lengths, room=self._room if begun else 1)
        if self._N:
            shape = (*state.tokens.shape, self._N)
            likeliest = Likeliest(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, state.log_p.dtype))
            state = state._replace(likeliest=likeliest)
        return state

    def _begin_windows(self) -> None:
        """Go on with the next windows."""
        before = self._state
        drawn = before.drawn + before.slot - before.first
        self._state = self._read()._replace(drawn=drawn, ended=before.ended, history=before.history)

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
