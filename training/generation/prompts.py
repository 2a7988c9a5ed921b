"""Reading prompts: all at once, or in parts, between which others go on."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from training.generation import states
from training.generation.buckets import bucketed, capacity, padded_rows, to_power_of_two
from training.generation.cache import rows_of_parts
from training.generation.prefixes import Prefixes, read_in_parts
from training.generation.states import State

ROOM = 256  # most tokens that a new cache has room for, so that a typical answer needs one compiled loop


class ReadPrompts(NamedTuple):
    """Prompts that have been read; one that several texts share is read once."""

    state: State
    rows: list[int]  # the row of the state that each text has


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


def read(model: Any, texts: Sequence[np.ndarray], *, more: int) -> ReadPrompts:
    """Let a `Generator` read each text's window, each once, into caches with room for `more` tokens, or `ROOM`."""
    l_max = model.config.l_max
    windows = [_window(text, l_max) for text in texts]
    numbers: dict[bytes, int] = {}
    rows = [numbers.setdefault(window.tobytes(), len(numbers)) for window in windows]
    different = to_power_of_two([windows[rows.index(i)] for i in range(len(numbers))])
    if len(different) >= len(texts):
        different, rows = windows, list(range(len(texts)))
    x, lengths = (array.astype(np.int32) for array in padded_rows(different))
    room = max(1, min(more, l_max - int(lengths.max()) + 1, ROOM))
    x = bucketed(x, l_max)
    C = capacity(x.shape[1] + 1 + room)
    if model.is_changed or model.prefixes is None:
        theta = model.theta if model.is_changed else model.apart
        return ReadPrompts(model.prefill(theta, x, lengths, C=C, limits=model.limits), rows)
    given, n = [_at_once(model, window) for window in different], rows_of_parts(model.theta, len(different))
    every = jnp.arange(len(different))
    return ReadPrompts(states.placed(given, every, slot=int(lengths.max()) - 1, C=C, n=n, N=0), rows)


def in_parts(model: Any, text: np.ndarray, n: int) -> Iterator[ReadPrompts | None]:
    """Read a prompt part by part, for n texts that end with the same window; yield None until it is read."""
    if model.is_changed or not Prefixes.serve(model.config.variant):  # they need whole sequences
        yield read(model, [text] * n, more=1)
        return
    for state in read_in_parts(model, _window(text, model.config.l_max)):
        yield None if state is None else ReadPrompts(state, [0] * n)


def _window(text: np.ndarray, l_max: int) -> np.ndarray:
    return np.asarray(text[window_start(len(text), l_max) :], np.int32)


def _at_once(model: Any, text: np.ndarray) -> State:
    *_, state = read_in_parts(model, text)
    assert state is not None
    return state
