"""Looking inside while tokens are generated: changes in every step, and values recorded for every token.

Each token is read once, in the forward pass of its prompt or in a step from the cache. What is recorded of a text
equals what `record` gives for one pass over it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from algorithms.inside import At, Recorded, at, intervene, record
from training.generation import decoding, prefilling
from training.generation.states import State

SCORES = ("S", "A")  # values with a row for each context token


class Inside:
    """`prefilling.prefill` and `decoding.decode` with changes, which also return what is recorded."""

    def __init__(self, changes: Mapping[str, Any] | Mapping[At, Any], names: Sequence[str]) -> None:
        """Record names of all tokens. Raises ValueError if one is of some tokens, or K or V are changed."""
        places = {_of_all_tokens(name): new for name, new in changes.items()}
        for where in places:
            if _symbol(where) in ("K", "V"):
                raise ValueError(
                    f"{where}: expected a change of something else, since the keys and values of prompts are computed "
                    "again for the cache; change what they are computed from, X_tilde@5"
                )
        self.names = tuple(_of_all_tokens(name) for name in names)
        self.prefill = record(intervene(prefilling.prefill, places), *self.names)
        self.decode = record(intervene(decoding.decode, places), *self.names)


def _of_all_tokens(name: str) -> At:
    where = name if isinstance(name, At) else at(name)
    for part in ("token", "context"):
        if getattr(where, part) is not None:
            raise ValueError(
                f"{where}: expected no {part} while text is generated, since each token is read in a separate step, "
                f"got {getattr(where, part)}; leave it out"
            )
    return where


class Recording:
    """Values recorded while sequences are generated."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        # of each sequence, by name: blocks [..., columns] of the tokens read so far, in order; of the prompts read last
        self.rows: list[dict[str, list[np.ndarray]]] = []
        self.latest: list[dict[str, list[np.ndarray]]] = []

    def prefill(self, theta: Any, x: Any, lengths: Any, **options: Any) -> State:
        """See `prefilling.prefill`; the last token of each prompt is not recorded: the first step reads it again."""
        state, seen = self._inside.prefill(theta, x, lengths, **options)
        values = {name: np.asarray(value) for name, value in seen.items()}
        of_rows = enumerate(np.asarray(lengths).tolist())
        self.latest = [{name: [_of_prompt(v, name, r, l)] for name, v in values.items()} for r, l in of_rows]
        return state

    def choose(self, rows: Sequence[int], *, beside: bool = False) -> None:
        """Continue with chosen sequences of the latest or, if ``beside``, of the present ones and the latest."""
        every = self.rows + self.latest if beside else self.latest
        self.rows = [{name: list(blocks) for name, blocks in every[r].items()} for r in rows]

    def decode(self, weights: Any, context: Any, state: State, keys: Any, *, stop: Any, **options: Any) -> State:
        """See `decoding.decode`, but one step at a time if something is recorded."""
        names = self._inside.names
        if not names:
            return self._inside.decode(weights, context, state, keys, stop=stop, **options)[0]
        while int(state.slot) < int(stop) and not bool(np.asarray(state.ended).all()):
            before = np.asarray(state.first) - np.asarray(state.lengths) + 1
            slots = [np.arange(first, int(state.slot) + 1) for first in before]  # of each sequence's tokens, in order
            state, seen = self._inside.decode(weights, context, state, keys, stop=stop, once=True, **options)
            values = [np.asarray(seen[name]) for name in names]
            for r, row in enumerate(self.rows):
                for name, value in zip(names, values, strict=True):
                    row[name].append(_of_step(value, name, r, slots[r], like=row[name][0]))
        return state

    def seen(self) -> list[Recorded]:
        """Return what was recorded of each sequence, ``[layers, H, rows, columns]``."""
        return [Recorded((name, _joined(name, blocks)) for name, blocks in row.items()) for row in self.rows]


def _symbol(name: str) -> str:
    return re.split(r"[@/\[]", name, maxsplit=1)[0]


def _of_prompt(value: np.ndarray, name: str, r: int, length: int) -> np.ndarray:
    """The part of sequence r, without its last token."""
    of_row = value[..., r, : length - 1]
    return of_row[..., : length - 1, :] if _symbol(name) in SCORES else of_row


def _of_step(value: np.ndarray, name: str, r: int, slots: np.ndarray, *, like: np.ndarray) -> np.ndarray:
    """The column of the token of sequence r that was just read."""
    if _symbol(name) in SCORES:  # [..., C, B]
        return value[..., slots, r].reshape(*like.shape[:-2], len(slots), 1)
    return value[..., r].reshape(*like.shape[:-1], 1)


def _joined(name: str, blocks: list[np.ndarray]) -> Array:
    if _symbol(name) in SCORES:
        n = max(block.shape[-2] for block in blocks)
        fill = -np.inf if name.startswith("S@5") else 0
        same = [(0, 0)] * (blocks[0].ndim - 2)
        blocks = [np.pad(b, [*same, (0, n - b.shape[-2]), (0, 0)], constant_values=fill) for b in blocks]
    return jnp.concatenate([jnp.asarray(block) for block in blocks], axis=-1)
