"""Batches of text, digits and control: three eighths of the rows, two, and three.

A row of text is one of `NextTokens`, packed; one of digits has a drawing, and as many images with their names as there
is room for; one of control has parts of episodes of the expert's.
"""

from typing import Any

import numpy as np

from training.data.batches import Batch, Dataset, NextTokens
from training.data.modalities import digits, pendulum
from training.data.modalities.sequences import Columns, Control, Discrete, Image, Text, Vocabulary, joined
from training.data.records import DataError, fingerprint
from training.data.store import TokenStore

NAMED_IN_A_ROW = 6
PER_STEP = 5
"""Columns of a step of control: three of observation, the separator, and the action."""
IN_VIEW = 5
"""Steps of control in a part of an episode, and those that the model has in view when it steers."""
EPISODES = {"train": (1000, 0), "validation": (32, 1)}
"""By part: how many episodes, and their seed."""


class Modalities(Dataset):
    """Rows of text, of digits and of control.

    {"x", "segment_ids", "positions", "loss_mask"} as those of `NextTokens`, and {"x_read", "at", "patches", "places"}:
    ``x_read`` is what the model reads: x, but with the actions that were done for those asked for; ``at`` says which
    of the row's ``patches`` [B, n, side, side, channels] stands in a column, −1 for none, and ``places`` [B, n, 2]
    where in its image it is.

    Raises:
        DataError: as `NextTokens`; or l_max has no room for a drawing.
    """

    def __init__(
        self, store: TokenStore, vocabulary: Vocabulary, *, l_max: int, batch_size: int, seed: int = 0
    ) -> None:
        if batch_size % 8:
            raise DataError(f"--batch-size: expected a multiple of 8, three eighths of it text, got {batch_size}")
        self._text = NextTokens(store, l_max=l_max, batch_size=3 * batch_size // 8, seed=seed, mode="packed")
        part = "train" if store.part == "train" else "validation"
        self._named, self._drawn = _of_digits(vocabulary, part)
        longest = max(len(columns.x) for columns in self._drawn)
        if longest > l_max:
            raise DataError(f"--l_max: expected at least {longest}, for a drawing of a digit, got {l_max}")
        self._control = _of_control(vocabulary, part)
        self._bos = vocabulary.tokenizer.bos_token
        self._filler = vocabulary.tokenizer.eos_token
        side, channels = vocabulary.config.patch, vocabulary.config.channels
        self._no_patches = np.zeros((NAMED_IN_A_ROW * len(self._named[0].patches), side, side, channels), np.float32)
        arrays = [array for columns in (*self._named, *self._drawn, *self._control) for array in columns]
        super().__init__(
            self._text.fingerprint,
            fingerprint(*(array.tobytes() for array in arrays)),
            n_examples=8 * self._text.n_examples // 3,
            l_max=l_max,
            batch_size=batch_size,
            seed=seed,
        )

    def batch(self, step: int, *, rows: slice = slice(None)) -> Batch:
        """As `Dataset.batch`."""
        return self._joined(self._text.batch(step), np.random.default_rng([self.seed, 1, step]), rows)

    def evaluation_batches(self, *, rows: slice = slice(None)) -> Any:
        """As `Dataset.evaluation_batches`: all of the text once, beside digits and control that are drawn anew."""
        for step, text in enumerate(self._text.evaluation_batches()):
            yield self._joined(text, np.random.default_rng([2, step]), rows)

    def _joined(self, text: Batch, rng: np.random.Generator, rows: slice) -> Batch:
        n = self.batch_size // 8
        others = [self._digits(rng) for _ in range(2 * n)] + [self._steps(rng) for _ in range(3 * n)]
        packed = [self._row(sequences) for sequences in others]
        none = {"x_read": text["x"], "at": np.full_like(text["x"], -1)} | self._patches(len(text["x"]))
        batch = {**text, **none}
        return {name: np.concatenate([batch[name], *(row[name] for row in packed)])[rows] for name in batch}

    def _digits(self, rng: np.random.Generator) -> list[Columns]:
        """Return a drawing, and images with their names, as many as there is room for."""
        chosen = [self._drawn[rng.integers(len(self._drawn))]]
        room = self.l_max - len(chosen[0].x)
        for i in rng.integers(len(self._named), size=NAMED_IN_A_ROW):
            if len(self._named[i].x) <= room:
                chosen.append(self._named[i])
                room -= len(self._named[i].x)
        return chosen

    def _steps(self, rng: np.random.Generator) -> list[Columns]:
        """Return parts of episodes, as many as there is room for."""
        n = IN_VIEW * PER_STEP
        return [
            self._part(self._control[rng.integers(len(self._control))], n, rng) for _ in range(self.l_max // (1 + n))
        ]

    def _part(self, episode: Columns, n: int, rng: np.random.Generator) -> Columns:
        """Return n columns of an episode, after bos."""
        first = 1 + PER_STEP * rng.integers((len(episode.x) - 1 - n) // PER_STEP + 1)
        chosen = np.concatenate([[0], np.arange(first, first + n)])
        x, read, at, predicted = (array[chosen] for array in episode[:4])
        return episode._replace(x=x, read=read, at=at, predicted=predicted)

    def _row(self, sequences: list[Columns]) -> Batch:
        lengths = [len(sequence.x) for sequence in sequences]
        whole, used = joined(sequences), sum(lengths)
        segments = np.repeat(np.arange(1, len(lengths) + 1), lengths)
        row = {
            "x": np.full((1, self.l_max), self._filler, np.int32),
            "x_read": np.full((1, self.l_max), self._filler, np.int32),
            "at": np.full((1, self.l_max), -1, np.int32),
            "segment_ids": np.zeros((1, self.l_max), np.int32),
            "positions": np.zeros((1, self.l_max), np.int32),
            "loss_mask": np.zeros((1, self.l_max), bool),
        } | self._patches(1)
        for name, array in (("x", whole.x), ("x_read", whole.read), ("at", whole.at), ("segment_ids", segments)):
            row[name][0, :used] = array
        row["positions"][0, :used] = np.concatenate([np.arange(n) for n in lengths])
        row["loss_mask"][0, : used - 1] = whole.predicted[1:] & (segments[1:] == segments[:-1])
        row["patches"][0, : len(whole.places)] = whole.patches.reshape(-1, *self._no_patches.shape[1:])
        row["places"][0, : len(whole.places)] = whole.places
        return row

    def _patches(self, n: int) -> Batch:
        places = np.zeros((n, len(self._no_patches), 2), np.int32)
        return {"patches": np.zeros((n, *self._no_patches.shape), np.float32), "places": places}

    def _examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        raise DataError(
            "--data: expected text without weights, since its share of a batch is three eighths; leave =WEIGHT out"
        )


def _of_digits(vocabulary: Vocabulary, part: str) -> tuple[list[Columns], list[Columns]]:
    """Return the images with their names, and the names with their drawings."""
    of_part = digits.load(part)
    named, drawn = [], []
    for shades, pixels, label in zip(of_part.shades, of_part.pixels, of_part.labels, strict=True):
        text = Text(digits.NAMES[label])
        named.append(vocabulary.sequence([Image(pixels), text], ends=True))
        drawn.append(vocabulary.sequence([text, Discrete(shades)], ends=True))
    return named, drawn


def _of_control(vocabulary: Vocabulary, part: str) -> list[Columns]:
    n, seed = EPISODES[part]
    episodes = pendulum.expert_episodes(n, seed=seed)
    torques, acted = episodes.torques / pendulum.TORQUE, episodes.acted / pendulum.TORQUE
    steps = zip(episodes.observations / pendulum.UNIT, torques, acted, strict=True)
    return [vocabulary.sequence([Control(*of_episode)], ends=True) for of_episode in steps]
