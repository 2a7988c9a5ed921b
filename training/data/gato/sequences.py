"""Sequences of several modalities: their tokens and patches, and the columns to predict.

    vocabulary.named(pixels, "seven")      bos, the image's patches in raster order, separator, tokens of its name, eos
    vocabulary.drawn("seven", shades)      bos, tokens of the name, separator, integers from 0 to 1,023 row by row

Without its answer, behind the separator, a sequence prompts the model for it. As in Gato, the loss is on text and
discrete values, never on images and separators.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from training.data.base_tokenizer import Tokenizer
from training.data.batches import Batch
from training.tasks.gato_embedding import BINS, GatoConfig, raster_patches, raster_places

EXTRA_TOKENS = BINS + 1  # in addition to the tokenizer's: one for each value, and the separator


class Columns(NamedTuple):
    """A sequence."""

    x: np.ndarray  # token IDs, [l]; 0 in columns with a patch
    at: np.ndarray  # the index of the column's patch, or −1, [l]
    predicted: np.ndarray  # whether the column is to be predicted, [l]
    patches: np.ndarray  # [n, side, side, channels]
    places: np.ndarray  # row and column of each patch in its image, [n, 2]


class Vocabulary(NamedTuple):
    """The token IDs of all modalities, and the division of images into patches."""

    tokenizer: Tokenizer  # of text, whose tokens come first
    config: GatoConfig  # the model's sizes

    @property
    def first(self) -> int:
        """The token of the value 0; the tokens of the other values follow."""
        return self.tokenizer.N_V

    @property
    def separator(self) -> int:
        """The token before an answer."""
        return self.first + BINS

    def named(self, pixels: np.ndarray, name: str | None = None) -> Columns:
        """Return an image, [height, width, channels] from −1 to 1, and its name, if given. Raises ValueError."""
        side = self.config.patch
        patches = np.moveaxis(np.asarray(raster_patches(jnp.asarray(pixels, jnp.float32), side=side)), -1, 0)
        places = np.stack(raster_places(*pixels.shape[:2], side=side, n_places=self.config.n_places), axis=1)
        n, answer = len(patches), [] if name is None else [*self.tokenizer.encode(name), self.tokenizer.eos_token]
        x = np.array([self.tokenizer.bos_token, *[0] * n, self.separator, *answer], np.int32)
        at = np.array([-1, *range(n), *[-1] * (1 + len(answer))])
        return Columns(x, at, np.arange(len(x)) > n + 1, patches, places.astype(np.int64))

    def drawn(self, name: str, values: np.ndarray | None = None) -> Columns:
        """Return a text and the discrete values that it describes, if given."""
        asked = [self.tokenizer.bos_token, *self.tokenizer.encode(name), self.separator]
        answer = [] if values is None else self.first + values.ravel()
        x, number = np.array([*asked, *answer], np.int32), np.arange(len(asked) + len(answer))
        patches = np.zeros((0, self.config.patch, self.config.patch, self.config.channels), np.float32)
        predicted = (number > 0) & (number != len(asked) - 1)
        return Columns(x, np.full(len(x), -1), predicted, patches, np.zeros((0, 2), np.int64))

    def batch(self, rows: Sequence[Sequence[Columns]], width: int, n: int) -> Batch:
        """Return rows of sequences as a batch: {"x", "segment_ids", "loss_mask"} as those of `NextTokens`, and {"at",
        "patches", "places"}: the index of a column's patch among the row's n patches [B, n, side, side, channels], −1
        for none, and the row and column of each patch in its image [B, n, 2].
        """
        shape, side = (len(rows), width), self.config.patch
        batch = {
            "x": np.full(shape, self.tokenizer.eos_token, np.int32),
            "at": np.full(shape, -1, np.int32),
            "segment_ids": np.zeros(shape, np.int32),
            "loss_mask": np.zeros(shape, bool),
            "patches": np.zeros((len(rows), n, side, side, self.config.channels), np.float32),
            "places": np.zeros((len(rows), n, 2), np.int32),
        }
        for b, sequences in enumerate(rows):
            column = patch = 0
            for s, found in enumerate(sequences, start=1):
                end, last = column + len(found.x), patch + len(found.places)
                batch["x"][b, column:end] = found.x
                batch["at"][b, column:end] = np.where(found.at < 0, -1, found.at + patch)
                batch["segment_ids"][b, column:end] = s
                batch["loss_mask"][b, column : end - 1] = found.predicted[1:]
                batch["patches"][b, patch:last], batch["places"][b, patch:last] = found.patches, found.places
                column, patch = end, last
        return batch
