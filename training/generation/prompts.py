"""Reading prompts: all at once, or in parts, between which others go on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from training.generation import states
from training.generation.buckets import padded_rows, to_power_of_two
from training.generation.inside import Reading
from training.generation.prefixes import Parts, Prefixes
from training.generation.states import State

ROOM = 256  # most tokens that a new cache has room for, so that a typical answer needs one compiled loop


class Read(NamedTuple):
    """Prompts that have been read; one that several texts share is read once."""

    state: State
    rows: list[int]  # the row of the state that each text has
    seen: list[Any]  # what was recorded of each row

    def chosen(self) -> State:
        """Return the state with a row for each text."""
        same = self.rows == list(range(len(self.state.tokens)))
        return self.state if same else states.chosen(self.state, jnp.asarray(self.rows))


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


def read(model: Any, texts: Sequence[np.ndarray], *, more: int) -> Read:
    """Let a `Generator` read the window of each text, into caches with room for `more` tokens, or for `ROOM`. Windows
    that several texts share are read once, a power of two of them, if those are fewer.
    """
    l_max = model.config.l_max
    windows = [np.asarray(text[window_start(len(text), l_max) :], np.int32) for text in texts]
    numbers: dict[bytes, int] = {}
    rows = [numbers.setdefault(window.tobytes(), len(numbers)) for window in windows]
    different = to_power_of_two([windows[rows.index(i)] for i in range(len(numbers))])
    if len(different) >= len(texts):
        different, rows = windows, list(range(len(texts)))
    x, lengths = (array.astype(np.int32) for array in padded_rows(different))
    room = max(1, min(more, l_max - int(lengths.max()) + 1, ROOM))
    reading = None if model.inside is None else Reading(model.inside)
    state = model.read(x, lengths, room=room, reading=reading)
    return Read(state, rows, [] if reading is None else reading.latest)


class PromptReader:
    """A prompt that is to be read in parts, for n texts that end with the same window."""

    def __init__(self, model: Any, text: np.ndarray, n: int) -> None:
        """Begin, with what the prompt has in common with an earlier one."""
        self._model, self._text, self._n = model, text, n
        window = np.asarray(text[window_start(len(text), model.config.l_max) :], np.int32)
        self._at_once = model.inside is not None or not Prefixes.serve(model.config.variant)
        if not self._at_once:
            known = None if model.prefixes is None else model.prefixes.begin(window[:-1])
            self._parts = Parts(model, window[:-1], known)
        self._last = int(window[-1])

    def advance(self) -> Read | None:
        """Read the next part; return the whole prompt after the last one."""
        if self._at_once:  # who looks inside, and states that are kept, need whole sequences
            return read(self._model, [self._text] * self._n, more=1)
        parts, kept = self._parts, self._model.prefixes
        if parts.rest:
            parts.read()
        if parts.rest:
            return None
        if kept is not None:
            kept.add(parts.text, parts.cache)
        return Read(parts.state(self._last), [0] * self._n, [])
