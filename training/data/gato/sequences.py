"""Sequences of several modalities: their tokens and patches, and the columns to predict.

    Text("seven")                          tokens of the tokenizer
    Image(pixels)                          patches, in raster order
    Discrete(shades)                       integers from 0 to 1,023, as additional tokens
    Control(observations, actions)         continuous values, as the same tokens: μ-law and 1,024 bins for
                                           observations, the bins alone for actions, which are within ±1

A sequence begins with bos; a separator comes before every answer: the name of an image, the drawing of a text, and
each action. As in Gato, the loss is on text and actions (the shades of a drawing are actions), never on images,
observations and separators.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from algorithms.gato import (
    BINS,
    GatoConfig,
    discretize,
    inverse_mu_law,
    mu_law,
    raster_patches,
    raster_places,
    undiscretize,
)
from training.data.base_tokenizer import Tokenizer
from training.data.records import DataError


class Text(NamedTuple):
    """A text."""

    text: str


class Image(NamedTuple):
    """An image: pixels from −1 to 1, [height, width, channels]."""

    pixels: np.ndarray


class Discrete(NamedTuple):
    """Integers from 0 to 1,023, of any shape, read row by row."""

    values: np.ndarray


class Control(NamedTuple):
    """Steps of control."""

    observations: np.ndarray  # [steps, d]
    actions: np.ndarray  # the actions to predict, within ±1, [steps or steps − 1, d]
    done: np.ndarray | None = None  # the actions that were done, which the next steps read; None: `actions`


ORDERS: tuple[tuple[type, ...], ...] = ((Text,), (Image, Text), (Text, Discrete), (Control,))
"""The orders of modalities that a model is trained on."""
EXTRA_TOKENS = BINS + 1  # in addition to the tokenizer's: one for each value, and the separator


class Columns(NamedTuple):
    """A sequence."""

    x: np.ndarray  # token IDs, [l]; 0 in columns with a patch
    read: np.ndarray  # the token IDs that the model reads, [l]: x with the actions done in place of those asked for
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

    def observed(self, values: np.ndarray) -> np.ndarray:
        """Return the tokens of continuous values within ±256."""
        return self.first + np.asarray(discretize(mu_law(jnp.asarray(values, jnp.float32))))

    def actions(self, values: np.ndarray) -> np.ndarray:
        """Return the tokens of continuous values within ±1."""
        return self.first + np.asarray(discretize(jnp.asarray(values, jnp.float32)))

    def action_of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the values of tokens made by `actions`, to within 1/1,024."""
        return np.asarray(undiscretize(jnp.asarray(tokens) - self.first))

    def observation_of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the values of tokens made by `observed`, to within half a bin."""
        return np.asarray(inverse_mu_law(undiscretize(jnp.asarray(tokens) - self.first)))

    def discrete(self, values: np.ndarray) -> np.ndarray:
        """Return the tokens of integers from 0 to 1,023. Raises DataError for any other value."""
        values = np.asarray(values)
        if values.dtype.kind not in "iu":
            raise DataError(f"discrete values: expected integers from 0 to {BINS - 1}, got {values.dtype}")
        if values.size and not (values.min() >= 0 and values.max() < BINS):
            raise DataError(
                f"discrete values: expected integers from 0 to {BINS - 1}, got {values.min()} to {values.max()}; "
                "renumber them, or give them as continuous values"
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
        if not ends and kinds != (Text,) and not isinstance(elements[-1], Control):
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
        return self._image(element) if isinstance(element, Image) else self._control(element)

    def _image(self, element: Image) -> Columns:
        side, pixels = self.config.patch, np.asarray(element.pixels, np.float32)
        if pixels.ndim != 3 or pixels.shape[-1] != self.config.channels:
            raise DataError(
                f"image: expected [height, width, {self.config.channels} channels], got {list(pixels.shape)}"
            )
        patches = np.moveaxis(np.asarray(raster_patches(jnp.asarray(pixels), side=side)), -1, 0)
        places = raster_places(*pixels.shape[:2], side=side, n_places=self.config.n_places)
        n = len(patches)
        x = np.zeros(n, np.int32)
        return Columns(x, x, np.arange(n), np.zeros(n, bool), patches, np.stack(places, axis=1))

    def _control(self, element: Control) -> Columns:
        observations, actions = np.asarray(element.observations), np.asarray(element.actions)
        steps = len(observations)
        if len(actions) not in (steps, steps - 1):
            raise DataError(
                f"actions: expected one for each of the {steps} observations, or for all but the last, got "
                f"{len(actions)}"
            )
        seen = self.observed(observations).reshape(steps, -1)
        asked = self.actions(actions).reshape(len(actions), math.prod(actions.shape[1:]))  # may be empty
        done = asked if element.done is None else self.actions(np.asarray(element.done)).reshape(asked.shape)
        x, read = (self._steps(seen, acted) for acted in (asked, done))
        width = seen.shape[1] + 1 + asked.shape[1]
        return _tokens(x, predicted=np.arange(len(x)) % width > seen.shape[1])._replace(read=read)

    def _steps(self, seen: np.ndarray, done: np.ndarray) -> np.ndarray:
        """Return the concatenated tokens of the steps; the last step may have no action."""
        separators = np.full((len(seen), 1), self.separator)
        whole = np.concatenate([seen[: len(done)], separators[: len(done)], done], axis=1)
        return np.concatenate([whole.ravel(), *seen[len(done) :], *separators[len(done) :]]).astype(np.int32)


def joined(parts: Sequence[Columns]) -> Columns:
    """Concatenate sequences and their patches."""
    before = np.cumsum([0, *(len(part.places) for part in parts)])
    fields = {name: [getattr(part, name) for part in parts] for name in Columns._fields}
    fields["at"] = [np.where(at < 0, -1, at + n) for at, n in zip(fields["at"], before, strict=False)]
    fields["patches"] = [patches for patches in fields["patches"] if len(patches)] or [_no_patches()[0]]
    return Columns(**{name: np.concatenate(arrays) for name, arrays in fields.items()})


def _tokens(ids: Any, *, predicted: Any) -> Columns:
    x = np.asarray(ids, np.int32)
    return Columns(x, x, np.full(len(x), -1), np.full(len(x), predicted), *_no_patches())


def _no_patches() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((0, 0, 0, 0), np.float32), np.zeros((0, 2), np.int64)


WORDS = {Text: "text", Image: "an image", Discrete: "discrete values", Control: "observations and actions in turn"}


def _words(kinds: Sequence[type]) -> str:
    return ", then ".join(WORDS.get(kind, kind.__name__) for kind in kinds)
