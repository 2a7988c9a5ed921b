"""Batches whose rows are half text and half digits.

A row of text is a packed row of `NextTokens`; a row of digits has a drawing, and as many named images as fit.
"""

from typing import Any

import numpy as np

from training.data.batches import Batch, Batches, NextTokens, Source
from training.data.gato import digits
from training.data.gato.sequences import Columns, Discrete, Image, Text, Vocabulary, joined
from training.data.records import DataError, fingerprint

NAMED_IN_A_ROW = 6  # most named images in a row


class Modalities(Batches):
    """Rows of text and digits: {"x", "segment_ids", "loss_mask"} as those of `NextTokens`, and {"at", "patches",
    "places"}: the index of a column's patch among the row's patches [B, n, side, side, channels], −1 for none, and the
    row and column of each patch in its image [B, n, 2].
    """

    def __init__(self, text: Source, vocabulary: Vocabulary, *, batch_size: int, seed: int = 0) -> None:
        """Add digits to the packed rows of a text."""
        if not isinstance(text, NextTokens):
            raise DataError(
                "--data: expected text without weights, since text is half of every batch; leave =WEIGHT out"
            )
        if batch_size % 2:
            raise DataError(f"--batch-size: expected an even number, half of it text, got {batch_size}")
        super().__init__(text, batch_size=batch_size, seed=seed)
        self._text, l_max = Batches(text, batch_size=batch_size // 2, seed=seed), text.l_max
        part = "train" if text.store.part == "train" else "validation"
        self._named, self._drawn = _of_digits(vocabulary, part)
        longest = max(len(columns.x) for columns in self._drawn)
        if longest > l_max:
            raise DataError(f"--l_max: expected at least {longest}, for a drawing of a digit, got {l_max}")
        self._filler = vocabulary.tokenizer.eos_token
        side, channels = vocabulary.config.patch, vocabulary.config.channels
        self._no_patches = np.zeros((NAMED_IN_A_ROW * len(self._named[0].patches), side, side, channels), np.float32)
        arrays = [array for columns in (*self._named, *self._drawn) for array in columns]
        own = fingerprint(*(array.tobytes() for array in arrays))
        self.fingerprint = fingerprint("Modalities", self._text.fingerprint, own, l_max, batch_size, seed)
        self.n_examples = 2 * self._text.n_examples

    @property
    def tokens_per_byte(self) -> float | None:
        """None: not all tokens are text."""
        return None

    @property
    def n_steps(self) -> int:
        """See `Batches.n_steps`."""
        return self._text.n_steps

    def batch(self, step: int, *, rows: slice = slice(None)) -> Batch:
        """See `Batches.batch`."""
        return self._joined(self._text.batch(step), np.random.default_rng([self.seed, 1, step]), rows)

    def evaluation_batches(self, *, rows: slice = slice(None), sample: int = 0) -> Any:
        """See `Batches.evaluation_batches`: every text once, with digits drawn at random."""
        for step, text in enumerate(self._text.evaluation_batches(sample=sample)):
            yield self._joined(text, np.random.default_rng([2, step]), rows)

    def _joined(self, text: Batch, rng: np.random.Generator, rows: slice) -> Batch:
        packed = [self._row(self._digits(rng)) for _ in range(self.batch_size // 2)]
        batch = {**text, "at": np.full_like(text["x"], -1), **self._patches(len(text["x"]))}
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

    def _row(self, sequences: list[Columns]) -> Batch:
        """Return a batch of one row with these sequences, padded to l_max."""
        lengths = [len(sequence.x) for sequence in sequences]
        whole, room = joined(sequences), self.source.l_max - sum(lengths)
        segments = np.repeat(np.arange(1, len(lengths) + 1), lengths)

        def row_of(values: np.ndarray, padding: int, dtype: type = np.int32) -> np.ndarray:
            return np.pad(values, (0, room), constant_values=padding)[None].astype(dtype)

        row = {
            "x": row_of(whole.x, self._filler),
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
