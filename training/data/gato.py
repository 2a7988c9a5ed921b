"""Half text and half digits: scikit-learn's 1,797 handwritten ones, images of 8 × 8 pixels in 17 shades, 0 to 16.

    vocabulary.named(pixels, "seven")      bos, the image's patches in raster order, separator, tokens of its name, eos
    vocabulary.drawn("seven", shades)      bos, tokens of the name, separator, the shades row by row, as values

Without its answer, behind the separator, a sequence prompts the model for it. As in Gato, the loss is on text and
values, never on images and separators.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from training.data.base_tokenizer import Tokenizer
from training.data.batches import Batch, Batches, Examples, NextTokens
from training.data.records import DataError, fingerprint
from training.extras import install
from training.tasks.gato_embedding import BINS, GatoConfig, raster

SHADES, SIDE = 17, 8
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HELD_OUT = 5  # every fifth image is held out
NAMED_IN_A_ROW = 6  # most named images in a row


class Digits(NamedTuple):
    """Images of digits."""

    shades: np.ndarray  # integers from 0 to 16, [n, 8, 8]
    labels: np.ndarray  # the digits, [n]

    @staticmethod
    def of(part: str) -> "Digits":
        """Return the digits for training ("train"), or the held-out ones. Raises DataError without scikit-learn."""
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError:
            raise DataError(f"the digits are scikit-learn's, which is not installed: {install('sklearn')}") from None
        data: Any = load_digits()
        chosen = (np.arange(len(data.target)) % HELD_OUT > 0) == (part == "train")
        return Digits(data.images[chosen].astype(np.int32), data.target[chosen].astype(np.int32))

    @property
    def pixels(self) -> np.ndarray:
        """The images as Gato reads them: values from −1 to 1, [n, 8, 8, 1]."""
        return (self.shades / (SHADES - 1) * 2 - 1)[..., None].astype(np.float32)

    @property
    def names(self) -> list[str]:
        """The digits in words."""
        return [NAMES[label] for label in self.labels]


class Columns(NamedTuple):
    """A sequence."""

    x: np.ndarray  # token IDs, [l]; 0 in columns with a patch
    at: np.ndarray  # the index of the column's patch, or −1, [l]
    predicted: np.ndarray  # whether the column is to be predicted, [l]
    patches: np.ndarray  # [n, side, side, channels]


class Vocabulary(NamedTuple):
    """The token IDs of all modalities, and the division of images into patches."""

    tokenizer: Tokenizer  # of text, whose tokens come first; those of values and the separator follow
    config: GatoConfig  # the model's sizes

    @property
    def separator(self) -> int:
        """The token before an answer."""
        return self.tokenizer.N_V + BINS

    def named(self, pixels: np.ndarray, name: str | None = None) -> Columns:
        """Return an image, [8, 8, 1] from −1 to 1, and its name, if given. Raises ValueError."""
        patches, row, _ = raster(pixels, side=self.config.patch, n_places=self.config.n_places)
        answer = [] if name is None else [*self.tokenizer.encode(name), self.tokenizer.eos_token]
        return self._columns([0] * len(row), answer, np.moveaxis(patches, -1, 0))

    def drawn(self, name: str, values: np.ndarray | None = None) -> Columns:
        """Return a text and the discrete values that it describes, if given."""
        patches = np.zeros((0, self.config.patch, self.config.patch, self.config.channels), np.float32)
        answer = [] if values is None else self.tokenizer.N_V + values.ravel()
        return self._columns(self.tokenizer.encode(name), answer, patches)

    def _columns(self, asked: Sequence[int], answer: Sequence[int] | np.ndarray, patches: np.ndarray) -> Columns:
        """Return the columns of a question, which begins with the patches, and of its answer."""
        x = np.array([self.tokenizer.bos_token, *asked, self.separator, *answer], np.int32)
        number, n = np.arange(len(x)), len(patches)
        at = np.where((number > 0) & (number <= n), number - 1, -1)
        return Columns(x, at, (number > n) & (x != self.separator), patches)

    def batch(self, rows: Sequence[Sequence[Columns]], width: int, n: int) -> Batch:
        """Return rows of sequences as a batch: {"x", "segment_ids", "loss_mask"} as those of `NextTokens`, and {"at",
        "patches", "places"}: the index of a column's patch among the row's n patches [B, n, side, side, channels], −1
        for none, and the row and column of each patch in its image [B, n, 2].
        """
        shape, side, channels = (len(rows), width), self.config.patch, self.config.channels
        _, *places = raster(np.zeros((SIDE, SIDE, channels)), side=side, n_places=self.config.n_places)
        batch = {
            "x": np.full(shape, self.tokenizer.eos_token, np.int32),
            "at": np.full(shape, -1, np.int32),
            "segment_ids": np.zeros(shape, np.int32),
            "loss_mask": np.zeros(shape, bool),
            "patches": np.zeros((len(rows), n, side, side, channels), np.float32),
            "places": np.resize(np.stack(places, axis=1), (len(rows), n, 2)).astype(np.int32),
        }
        for b, sequences in enumerate(rows):
            column = patch = 0
            for s, found in enumerate(sequences, start=1):
                end, last = column + len(found.x), patch + len(found.patches)
                batch["x"][b, column:end] = found.x
                batch["at"][b, column:end] = np.where(found.at < 0, -1, found.at + patch)
                batch["segment_ids"][b, column:end] = s
                batch["loss_mask"][b, column : end - 1] = found.predicted[1:]
                batch["patches"][b, patch:last] = found.patches
                column, patch = end, last
        return batch


class Modalities(Batches):
    """Batches whose rows are half text, packed, and half digits: a drawing, and as many named images as fit."""

    def __init__(self, text: Examples, vocabulary: Vocabulary, *, batch_size: int, seed: int = 0) -> None:
        """Add digits to the packed rows of a text."""
        if not isinstance(text, NextTokens):
            raise DataError(
                "--data: expected text without weights, since text is half of every batch; leave =WEIGHT out"
            )
        if batch_size % 2:
            raise DataError(f"--batch-size: expected an even number, half of it text, got {batch_size}")
        super().__init__(text, batch_size=batch_size, seed=seed)
        self._text, self._vocabulary = Batches(text, batch_size=batch_size // 2, seed=seed), vocabulary
        data = Digits.of("train" if text.store.part == "train" else "validation")
        self._named = [*map(vocabulary.named, data.pixels, data.names)]
        self._drawn = [*map(vocabulary.drawn, data.names, data.shades)]
        longest = max(len(columns.x) for columns in self._drawn)
        if longest > text.l_max:
            raise DataError(f"--l_max: expected at least {longest}, for a drawing of a digit, got {text.l_max}")
        arrays = [array for columns in (*self._named, *self._drawn) for array in columns]
        own = fingerprint(*(array.tobytes() for array in arrays))
        self.fingerprint = fingerprint("Modalities", self._text.fingerprint, own, text.l_max, batch_size, seed)
        self.n_examples = 2 * self._text.n_examples

    @property
    def tokens_per_byte(self) -> None:
        """None: not all tokens are text."""

    def batch(self, step: int, *, rows: slice = slice(None)) -> Batch:
        """As `Batches.batch`."""
        return self._joined(self._text.batch(step), np.random.default_rng([self.seed, 1, step]), rows)

    def evaluation_batches(self, *, rows: slice = slice(None), sample: int = 0) -> Iterator[Batch]:
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
