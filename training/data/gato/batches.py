"""Batches of text, digits and control: of every eight rows, three are text, two digits, and three control.

A row of text is a packed row of `NextTokens`; a row of digits has a drawing, and as many named images as fit; a row of
control has parts of the expert's episodes.
"""

from typing import Any

import numpy as np

from training.data.batches import Batch, Batches, NextTokens, Source
from training.data.gato import digits, pendulum
from training.data.gato.sequences import Columns, Control, Discrete, Image, Text, Vocabulary, joined
from training.data.records import DataError, fingerprint

NAMED_IN_A_ROW = 6  # most named images in a row
PER_STEP = 5  # columns of a step of control: three observations, the separator, and the action
IN_VIEW = 5  # steps of control in a part of an episode, and in the model's context when it steers
EPISODES = {"train": (1000, 0), "validation": (32, 1)}  # number of episodes and their seed, by part


class Modalities(Batches):
    """Rows of text, digits and control: {"x", "segment_ids", "loss_mask"} as those of `NextTokens`, and
    {"x_read", "at", "patches", "places"}. ``x_read`` is what the model reads: x with the actions done in place of those
    asked for; ``at`` is the index of a column's patch among the row's ``patches`` [B, n, side, side, channels], −1 for
    none; ``places`` [B, n, 2] are the row and column of each patch in its image.
    """

    def __init__(self, text: Source, vocabulary: Vocabulary, *, batch_size: int, seed: int = 0) -> None:
        """Add digits and control to the packed rows of a text."""
        if not isinstance(text, NextTokens):
            raise DataError(
                "--data: expected text without weights, since text is three eighths of every batch; leave =WEIGHT out"
            )
        if batch_size % 8:
            raise DataError(f"--batch-size: expected a multiple of 8, three eighths of it text, got {batch_size}")
        super().__init__(text, batch_size=batch_size, seed=seed)
        self._text, l_max = Batches(text, batch_size=3 * batch_size // 8, seed=seed), text.l_max
        part = "train" if text.store.part == "train" else "validation"
        self._named, self._drawn = _of_digits(vocabulary, part)
        longest = max(len(columns.x) for columns in self._drawn)
        if longest > l_max:
            raise DataError(f"--l_max: expected at least {longest}, for a drawing of a digit, got {l_max}")
        self._control = _of_control(vocabulary, part)
        self._filler = vocabulary.tokenizer.eos_token
        side, channels = vocabulary.config.patch, vocabulary.config.channels
        self._no_patches = np.zeros((NAMED_IN_A_ROW * len(self._named[0].patches), side, side, channels), np.float32)
        arrays = [array for columns in (*self._named, *self._drawn, *self._control) for array in columns]
        own = fingerprint(*(array.tobytes() for array in arrays))
        self.fingerprint = fingerprint("Modalities", self._text.fingerprint, own, l_max, batch_size, seed)
        self.n_examples = 8 * self._text.n_examples // 3

    @property
    def tokens_per_byte(self) -> float | None:
        """None: not all tokens are text."""
        return None

    @property
    def n_steps(self) -> int:
        """As `Batches.n_steps`."""
        return self._text.n_steps

    def batch(self, step: int, *, rows: slice = slice(None)) -> Batch:
        """As `Batches.batch`."""
        return self._joined(self._text.batch(step), np.random.default_rng([self.seed, 1, step]), rows)

    def evaluation_batches(self, *, rows: slice = slice(None), sample: int = 0) -> Any:
        """As `Batches.evaluation_batches`: every text once, with digits and control drawn at random."""
        for step, text in enumerate(self._text.evaluation_batches(sample=sample)):
            yield self._joined(text, np.random.default_rng([2, step]), rows)

    def _joined(self, text: Batch, rng: np.random.Generator, rows: slice) -> Batch:
        n = self.batch_size // 8
        others = [self._digits(rng) for _ in range(2 * n)] + [self._steps(rng) for _ in range(3 * n)]
        packed = [self._row(sequences) for sequences in others]
        batch = {**text, "x_read": text["x"], "at": np.full_like(text["x"], -1), **self._patches(len(text["x"]))}
        return {name: np.concatenate([batch[name], *(row[name] for row in packed)])[rows] for name in batch}

    def _digits(self, rng: np.random.Generator) -> list[Columns]:
        """Return a drawing, and as many named images as fit."""
        chosen = [self._drawn[rng.integers(len(self._drawn))]]
        room = self.source.l_max - len(chosen[0].x)
        for i in rng.integers(len(self._named), size=NAMED_IN_A_ROW):
            if len(self._named[i].x) <= room:
                chosen.append(self._named[i])
                room -= len(self._named[i].x)
        return chosen

    def _steps(self, rng: np.random.Generator) -> list[Columns]:
        """Return as many parts of episodes as fit."""
        n = IN_VIEW * PER_STEP
        return [
            self._part(self._control[rng.integers(len(self._control))], n, rng)
            for _ in range(self.source.l_max // (1 + n))
        ]

    def _part(self, episode: Columns, n: int, rng: np.random.Generator) -> Columns:
        """Return bos and n columns of an episode."""
        first = 1 + PER_STEP * rng.integers((len(episode.x) - 1 - n) // PER_STEP + 1)
        chosen = np.concatenate([[0], np.arange(first, first + n)])
        x, read, at, predicted = (array[chosen] for array in episode[:4])
        return episode._replace(x=x, read=read, at=at, predicted=predicted)

    def _row(self, sequences: list[Columns]) -> Batch:
        """Return a batch of one row with these sequences, padded to l_max."""
        lengths = [len(sequence.x) for sequence in sequences]
        whole, room = joined(sequences), self.source.l_max - sum(lengths)
        segments = np.repeat(np.arange(1, len(lengths) + 1), lengths)

        def row_of(values: np.ndarray, padding: int, dtype: type = np.int32) -> np.ndarray:
            return np.pad(values, (0, room), constant_values=padding)[None].astype(dtype)

        row = {
            "x": row_of(whole.x, self._filler),
            "x_read": row_of(whole.read, self._filler),
            "at": row_of(whole.at, -1),
            "segment_ids": row_of(segments, 0),
            "loss_mask": row_of(np.append(whole.predicted[1:] & (segments[1:] == segments[:-1]), False), 0, bool),
        } | self._patches(1)
        row["patches"][0, : len(whole.places)] = whole.patches.reshape(-1, *self._no_patches.shape[1:])
        row["places"][0, : len(whole.places)] = whole.places
        return row

    def _patches(self, n: int) -> Batch:
        places = np.zeros((n, len(self._no_patches), 2), np.int32)
        return {"patches": np.zeros((n, *self._no_patches.shape), np.float32), "places": places}


def _of_digits(vocabulary: Vocabulary, part: str) -> tuple[list[Columns], list[Columns]]:
    """Return the images followed by their names, and the names followed by their drawings."""
    data = digits.load(part)
    named, drawn = [], []
    for shades, pixels, label in zip(data.shades, data.pixels, data.labels, strict=True):
        text = Text(digits.NAMES[label])
        named.append(vocabulary.sequence([Image(pixels), text], ends=True))
        drawn.append(vocabulary.sequence([text, Discrete(shades)], ends=True))
    return named, drawn


def _of_control(vocabulary: Vocabulary, part: str) -> list[Columns]:
    n, seed = EPISODES[part]
    episodes = pendulum.expert_episodes(n, seed=seed)
    torques, acted = episodes.torques / pendulum.TORQUE, episodes.acted / pendulum.TORQUE
    steps = zip(episodes.observations / pendulum.UNIT, torques, acted, strict=True)
    return [vocabulary.sequence([Control(*episode)], ends=True) for episode in steps]
