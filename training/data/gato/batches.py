"""Batches whose rows are half text and half digits.

A row of text is a packed row of `NextTokens`; a row of digits has a drawing, and as many named images as fit.
"""

from typing import Any

import numpy as np

from training.data.batches import Batch, Batches, NextTokens, Source
from training.data.gato import digits
from training.data.gato.sequences import Columns, Vocabulary
from training.data.records import DataError, fingerprint

NAMED_IN_A_ROW = 6  # most named images in a row


class Modalities(Batches):
    """Rows of text and digits, as `Vocabulary.batch` describes them."""

    def __init__(self, text: Source, vocabulary: Vocabulary, *, batch_size: int, seed: int = 0) -> None:
        """Add digits to the packed rows of a text."""
        if not isinstance(text, NextTokens):
            raise DataError(
                "--data: expected text without weights, since text is half of every batch; leave =WEIGHT out"
            )
        if batch_size % 2:
            raise DataError(f"--batch-size: expected an even number, half of it text, got {batch_size}")
        super().__init__(text, batch_size=batch_size, seed=seed)
        self._text, self._vocabulary = Batches(text, batch_size=batch_size // 2, seed=seed), vocabulary
        data = digits.load("train" if text.store.part == "train" else "validation")
        names = [digits.NAMES[label] for label in data.labels]
        self._named = [vocabulary.named(*of_image) for of_image in zip(data.pixels, names, strict=True)]
        self._drawn = [vocabulary.drawn(*of_name) for of_name in zip(names, data.shades, strict=True)]
        longest = max(len(columns.x) for columns in self._drawn)
        if longest > text.l_max:
            raise DataError(f"--l_max: expected at least {longest}, for a drawing of a digit, got {text.l_max}")
        arrays = [array for columns in (*self._named, *self._drawn) for array in columns]
        own = fingerprint(*(array.tobytes() for array in arrays))
        self.fingerprint = fingerprint("Modalities", self._text.fingerprint, own, text.l_max, batch_size, seed)
        self.n_examples = 2 * self._text.n_examples

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
        """As `Batches.evaluation_batches`: every text once, with digits drawn at random."""
        for step, text in enumerate(self._text.evaluation_batches(sample=sample)):
            yield self._joined(text, np.random.default_rng([2, step]), rows)

    def _joined(self, text: Batch, rng: np.random.Generator, rows: slice) -> Batch:
        sizes = self.source.l_max, NAMED_IN_A_ROW * len(self._named[0].patches)
        of_digits = self._vocabulary.batch([self._digits(rng) for _ in range(self.batch_size // 2)], *sizes)
        of_text = self._vocabulary.batch([()] * len(text["x"]), *sizes) | text
        return {name: np.concatenate([of_text[name], array])[rows] for name, array in of_digits.items()}

    def _digits(self, rng: np.random.Generator) -> list[Columns]:
        """Return a drawing, and as many named images as fit."""
        chosen = [self._drawn[rng.integers(len(self._drawn))]]
        room = self.source.l_max - len(chosen[0].x)
        for i in rng.integers(len(self._named), size=NAMED_IN_A_ROW):
            if len(self._named[i].x) <= room:
                chosen.append(self._named[i])
                room -= len(self._named[i].x)
        return chosen
