"""Noise in what a model reads in training: some tokens are replaced or deleted; what it predicts is unchanged.

| task | read with noise | predicted without |
|---|---|---|
| `d` | `x_read` | the next tokens of `x` |
| `ed` | `z`, `x_read` | the next tokens of `x` |
| `classify` | `x` | the label |

Special tokens, padding and evaluation batches have no noise. `e` has none, since it masks tokens already.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from training.data.batches import Batch, Dataset

STREAM = 3  # separates these random numbers from those of the batches


class Noisy(Dataset):
    """A data set with noise in its training batches."""

    def __init__(self, data: Dataset, special: tuple[int, ...], N_V: int, *, noise: float, deletion: float) -> None:
        """Replace tokens by random ones with probability `noise`, and delete tokens of a source or a text to classify
        with probability `deletion`; `special` tokens are neither replaced nor used as replacements.
        """
        self._data, self._special, self._noise, self._deletion = data, np.array(special), noise, deletion
        self._ordinary = np.setdiff1d(np.arange(N_V), self._special).astype(np.int32)
        self.n_too_long, self.too_long = data.n_too_long, data.too_long
        sizes = {"l_max": data.l_max, "batch_size": data.batch_size, "seed": data.seed}
        super().__init__(data.fingerprint, noise, deletion, n_examples=data.n_examples, **sizes)

    @property
    def tokens_per_byte(self) -> float | None:
        """That of the data set."""
        return self._data.tokens_per_byte

    def batch(self, step: int, *, rows: slice = slice(None)) -> Batch:
        """As `Dataset.batch`; the noise of a row does not depend on which rows are requested."""
        rng = np.random.default_rng([self.seed, STREAM, step])
        batch = dict(self._data.batch(step, rows=rows))
        for name, length in (("z", "z_length"), ("x", "length")):
            if name not in batch:
                continue
            chosen, left_out = rng.random((2, self.batch_size, self.l_max))[:, rows, : batch[name].shape[1]]
            others = self._ordinary[rng.integers(len(self._ordinary), size=(self.batch_size, self.l_max))]
            ordinary = ~np.isin(batch[name], self._special)
            read = np.where((chosen < self._noise) & ordinary, others[rows, : batch[name].shape[1]], batch[name])
            if "label" in batch or name == "z":
                batch[name], batch[length] = _without(read, batch[length], (left_out < self._deletion) & ordinary)
            else:
                batch["x_read"] = read
        return batch

    def evaluation_batches(self, *, rows: slice = slice(None)) -> Iterator[Batch]:
        """Those of the data set, without noise."""
        return self._data.evaluation_batches(rows=rows)

    def _examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Any:
        return self._data._examples(indices, rows, rng)


def _without(x: np.ndarray, lengths: np.ndarray, left_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows without some of their tokens, padded with the token of their last column, and their lengths."""
    kept = ~left_out | (np.arange(x.shape[1]) >= lengths[:, None])
    order = np.argsort(~kept, axis=1, kind="stable")
    moved = np.take_along_axis(x, order, axis=1)
    shorter = (lengths - (~kept).sum(axis=1)).astype(lengths.dtype)
    return np.where(np.arange(x.shape[1]) < shorter[:, None], moved, x[:, -1:]), shorter
