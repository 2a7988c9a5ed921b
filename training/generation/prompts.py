"""Reading prompts: all at once, or in parts, between which others go on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from training.generation import inputs, prefixes, reading, states
from training.generation.inside import Reading
from training.generation.prefixes import Parts
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


def windows_of(texts: Sequence[np.ndarray], l_max: int) -> tuple[list[np.ndarray], list[int]]:
    """Return the different windows that the next tokens of texts are predicted from, and which of them each has."""
    of_texts = [np.asarray(text[window_start(len(text), l_max) :], np.int32) for text in texts]
    numbers: dict[bytes, int] = {}
    rows = [numbers.setdefault(window.tobytes(), len(numbers)) for window in of_texts]
    return [of_texts[rows.index(i)] for i in range(len(numbers))], rows


def read(model: Any, texts: Sequence[np.ndarray], *, more: int) -> Read:
    """Let a `Generator` read the window of each text, into caches with room for `more` tokens, or for `ROOM`."""
    l_max = model.config.l_max
    windows, rows = windows_of(texts, l_max)
    padded = inputs.to_power_of_two(windows)
    if len(padded) >= len(texts):  # no fewer rows than texts
        padded, rows = [windows[r] for r in rows], list(range(len(texts)))
    x, lengths = (array.astype(np.int32) for array in inputs.padded_rows(padded))
    room = max(1, min(more, l_max - int(lengths.max()) + 1, ROOM))
    inside = None if model.inside is None else Reading(model.inside)
    prefill = reading.prefill if inside is None else inside.prefill
    state = model.read(x, lengths, room=room, prefill=prefill)
    return Read(state, rows, [] if inside is None else inside.latest)


class PromptReader:
    """Texts that are to be read, one of many tokens in parts."""

    def __init__(self, model: Any, texts: Sequence[np.ndarray]) -> None:
        """Begin, with what an earlier text has in common with the only one."""
        self._model, self._texts = model, texts
        windows, self._rows = windows_of(texts, model.config.l_max)
        self._parts: Parts | None = None
        if len(windows) == 1 and model.inside is None and len(windows[0]) > prefixes.MANY:
            text, self._last = windows[0][:-1], int(windows[0][-1])
            known = None if model.prefixes is None else model.prefixes.begin(text)
            self._parts = Parts(model, text, known)

    def advance(self) -> Read | None:
        """Read the next part; return all prompts after the last one."""
        if self._parts is None:
            return read(self._model, self._texts, more=1)
        if self._parts.rest:
            self._parts.read()
        if self._parts.rest:
            return None
        if self._model.prefixes is not None:
            self._model.prefixes.add(self._parts.text, self._parts.caches)
        return Read(self._parts.state(self._last), self._rows, [])
