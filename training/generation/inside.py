"""Looking inside while tokens are generated: changes in every step, and what is recorded of every token that is read.

A token is read once, by the forward pass of its prompt or in a step from the cache; what is recorded of a text is what
`record` gives of one pass over it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from algorithms.inside import At, Recorded, at, intervene, record
from training.generation import decoding, reading
from training.generation.states import State

SCORES = ("S", "A")
"""What has a row for each context token."""


class Inside:
    """`reading.prefill` and `decoding.decode` with changes, which hand out what is recorded."""

    def __init__(self, changes: Mapping[str, Any] | Mapping[At, Any], names: Sequence[str], L: int) -> None:
        """Look inside a model of L layers at these names, changed as `algorithms.inside.intervene` takes it, of all
        tokens. Raises ValueError if one of them is a part of the tokens, or K or V are changed.
        """
        places = {_of_all_tokens(name): new for name, new in changes.items()}
        for where in places:
            if _symbol(where) in ("K", "V"):
                raise ValueError(
                    f"{where}: expected a change of something else, since the keys and values of prompts are computed "
                    "once more for the cache; change what they are computed from, X_tilde@5"
                )
        self.names = tuple(_of_all_tokens(name) for name in names)
        self.prefill = record(intervene(reading.prefill, places), *self.names)
        if L == 1:  # steps have no loop over one layer
            places = {at(p.name, head=p.head, within=p.within): new for p, new in places.items()}
        self.step_names = [at(n.name, head=n.head, within=n.within) if L == 1 else n for n in self.names]
        self.decode = record(intervene(decoding.decode, places), *self.step_names)


def _of_all_tokens(name: str) -> At:
    where = name if isinstance(name, At) else at(name)
    for part in ("token", "context"):
        if getattr(where, part) is not None:
            raise ValueError(
                f"{where}: expected no {part} while text is generated, since every token is read in a step of its own, "
                f"got {getattr(where, part)}; leave it out"
            )
    return where


class Reading:
    """What is recorded of sequences on their way: row by row, in blocks of tokens.

    Attributes:
        rows: of each sequence, for each name, ``[…, columns]`` of the tokens read so far, in order.
        latest: the same of those that were just read as a whole.
    """

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self.rows: list[dict[str, list[np.ndarray]]] = []
        self.latest: list[dict[str, list[np.ndarray]]] = []

    def prefill(self, theta: Any, x: Any, lengths: Any, **options: Any) -> State:
        """As `reading.prefill`. The last token of each prompt is read once more by the first step."""
        state, seen = self._inside.prefill(theta, x, lengths, **options)
        values = {name: np.asarray(value) for name, value in seen.items()}
        of_rows = enumerate(np.asarray(lengths).tolist())
        self.latest = [{name: [_of_prompt(v, name, r, l)] for name, v in values.items()} for r, l in of_rows]
        return state

    def choose(self, rows: Sequence[int], *, beside: bool = False) -> None:
        """Go on with some of the sequences just read; ``beside`` those on their way, which stand in front of them."""
        every = self.rows + self.latest if beside else self.latest
        self.rows = [{name: list(blocks) for name, blocks in every[r].items()} for r in rows]

    def copy(self) -> "Reading":
        """Return a copy of what was recorded of the sequences so far, which no longer follows this one."""
        other = Reading(self._inside)
        other.latest = self.rows
        other.choose(range(len(self.rows)))
        return other

    def decode(self, weights: Any, context: Any, state: State, keys: Any, *, stop: Any, **options: Any) -> State:
        """As `decoding.decode`; where something is recorded, step by step."""
        names = self._inside.names
        if not names:
            return self._inside.decode(weights, context, state, keys, stop=stop, **options)[0]
        while int(state.slot) < int(stop) and not bool(np.asarray(state.ended).all()):
            slots = [_slots(state, r) for r in range(len(self.rows))]
            state, seen = self._inside.decode(weights, context, state, keys, stop=stop, once=True, **options)
            values = [np.asarray(seen[name]) for name in self._inside.step_names]
            for r, row in enumerate(self.rows):
                for name, value in zip(names, values, strict=True):
                    row[name].append(_of_step(value, name, r, slots[r], like=row[name][0]))
        return state

    def seen(self) -> list[Recorded]:
        """What was recorded of each sequence, ``[layers, H, rows, columns]``."""
        return [Recorded((name, _joined(name, blocks)) for name, blocks in row.items()) for row in self.rows]


def _symbol(name: str) -> str:
    return re.split(r"[@/\[]", name, maxsplit=1)[0]


def _of_prompt(value: np.ndarray, name: str, r: int, length: int) -> np.ndarray:
    """Of one sequence, the tokens before its last."""
    of_row = value[..., r, : length - 1]
    return of_row[..., : length - 1, :] if _symbol(name) in SCORES else of_row


def _slots(state: State, r: int) -> np.ndarray:
    """The slots of the keys of a sequence's tokens, in order, with the one that is read next."""
    return np.arange(int(state.first[r]) - int(state.lengths[r]) + 1, int(state.slot) + 1)


def _of_step(value: np.ndarray, name: str, r: int, slots: np.ndarray, *, like: np.ndarray) -> np.ndarray:
    """Of one sequence, the column of the token that was read."""
    if _symbol(name) in SCORES:  # [..., C, B]
        return value[..., slots, r].reshape(*like.shape[:-2], len(slots), 1)
    return value[..., r].reshape(*like.shape[:-1], 1)


def _joined(name: str, blocks: list[np.ndarray]) -> Array:
    if _symbol(name) in SCORES:
        n = max(block.shape[-2] for block in blocks)
        fill = -np.inf if name.startswith("S@5") else 0
        blocks = [_taller(block, n, fill) for block in blocks]
    return jnp.concatenate([jnp.asarray(block) for block in blocks], axis=-1)


def _taller(block: np.ndarray, n: int, fill: float) -> np.ndarray:
    widths = [(0, 0)] * (block.ndim - 2) + [(0, n - block.shape[-2]), (0, 0)]
    return np.pad(block, widths, constant_values=fill)
