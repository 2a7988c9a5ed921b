"""Sequences of several modalities: their tokens and patches, and the columns to predict.

    Text("seven")                          tokens of the tokenizer
    Image(pixels)                          patches, in raster order
    Discrete(shades)                       integers from 0 to 1,023, as additional tokens

A sequence begins with bos; a separator comes before every answer: the name of an image, and the drawing of a text. As
in Gato, the loss is on text and discrete values, never on images and separators.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from training.data.base_tokenizer import Tokenizer
from training.data.records import DataError
from training.tasks.gato_embedding import BINS, GatoConfig, raster_patches, raster_places


class Text(NamedTuple):
    """A text."""

    text: str


class Image(NamedTuple):
    """An image: pixels from −1 to 1, [height, width, channels]."""

    pixels: np.ndarray


class Discrete(NamedTuple):
    """Integers from 0 to 1,023, of any shape, read row by row."""

    values: np.ndarray


ORDERS: tuple[tuple[type, ...], ...] = ((Text,), (Image, Text), (Text, Discrete))
"""The orders of modalities that a model is trained on."""
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

    def discrete(self, values: np.ndarray) -> np.ndarray:
        """Return the tokens of integers from 0 to 1,023. Raises DataError for any other value."""
        values = np.asarray(values)
        if values.dtype.kind not in "iu":
            raise DataError(f"discrete values: expected integers from 0 to {BINS - 1}, got {values.dtype}")
        if values.size and not (values.min() >= 0 and values.max() < BINS):
            raise DataError(
                f"discrete values: expected integers from 0 to {BINS - 1}, got {values.min()} to {values.max()}; "
                "renumber them"
            )
        return self.first + values.ravel().astype(np.int32)

    def sequence(self, elements: Sequence[Any], *, ends: bool) -> Columns:
        """Return elements in one of `ORDERS`, or the beginning of one, as the columns that a model reads; unless the
        sequence `ends`, the model continues it with an answer. Raises DataError or ValueError for anything else, or
        invalid values.
        """
        kinds = tuple(type(element) for element in elements)
        if not any(kinds and order[: len(kinds)] == kinds and (not ends or kinds == order) for order in ORDERS):
            known = "; ".join(_words(order) for order in ORDERS)
            raise DataError(f"modalities: expected one of these orders: {known}; got {_words(kinds) or 'nothing'}")
        parts = [_tokens([self.tokenizer.bos_token], predicted=False)]
        for number, element in enumerate(elements):
            if number:
                parts.append(_tokens([self.separator], predicted=False))
            parts.append(self._part(element))
        if not ends and kinds != (Text,):
            parts.append(_tokens([self.separator], predicted=False))
        if ends and kinds[-1] is Text:
            parts.append(_tokens([self.tokenizer.eos_token], predicted=True))
        return joined(parts)

    def to_draw(self, text: str) -> Columns:
        """Return a text and a separator, as a prompt for a drawing."""
        asked = self.sequence([Text(text)], ends=False)
        return joined([asked, _tokens([self.separator], predicted=False)])

    def _part(self, element: Any) -> Columns:
        if isinstance(element, Text):
            return _tokens(self.tokenizer.encode(element.text), predicted=True)
        if isinstance(element, Discrete):
            return _tokens(self.discrete(element.values), predicted=True)
        side, pixels = self.config.patch, np.asarray(element.pixels, np.float32)
        if pixels.ndim != 3 or pixels.shape[-1] != self.config.channels:
            raise DataError(
                f"image: expected [height, width, {self.config.channels} channels], got {list(pixels.shape)}"
            )
        patches = np.moveaxis(np.asarray(raster_patches(jnp.asarray(pixels), side=side)), -1, 0)
        places = raster_places(*pixels.shape[:2], side=side, n_places=self.config.n_places)
        n = len(patches)
        return Columns(np.zeros(n, np.int32), np.arange(n), np.zeros(n, bool), patches, np.stack(places, axis=1))


def joined(parts: Sequence[Columns]) -> Columns:
    """Concatenate sequences and their patches."""
    before = np.cumsum([0, *(len(part.places) for part in parts)])
    fields = {name: [getattr(part, name) for part in parts] for name in Columns._fields}
    fields["at"] = [np.where(at < 0, -1, at + n) for at, n in zip(fields["at"], before, strict=False)]
    fields["patches"] = [patches for patches in fields["patches"] if len(patches)] or [_no_patches()[0]]
    return Columns(**{name: np.concatenate(arrays) for name, arrays in fields.items()})


def _tokens(ids: Any, *, predicted: Any) -> Columns:
    x = np.asarray(ids, np.int32)
    return Columns(x, np.full(len(x), -1), np.full(len(x), predicted), *_no_patches())


def _no_patches() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((0, 0, 0, 0), np.float32), np.zeros((0, 2), np.int64)


WORDS = {Text: "text", Image: "an image", Discrete: "discrete values"}


def _words(kinds: Sequence[type]) -> str:
    return ", then ".join(WORDS.get(kind, kind.__name__) for kind in kinds)
