"""Noise in what a model reads in training: some tokens are replaced or deleted; what it predicts is unchanged.

| task | read with noise | predicted without |
|---|---|---|
| `d` | `x_read` | the next tokens of `x` |
| `ed` | `z`, `x_read` | the next tokens of `x` |
| `classify` | `x` | the label |

Special tokens, padding and evaluation batches have no noise. `e` has none, since it masks tokens already.
"""

import dataclasses

import numpy as np

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """A function of a batch."""

    special: tuple[int, ...]  # tokens that are neither replaced nor used as replacements
    N_V: int
    noise: float  # the probability that a random token replaces a token
    deletion: float  # the probability that a token of a source, or of a text to classify, is deleted

    def __call__(self, batch: Batch, rng: np.random.Generator, rows: slice, shape: tuple[int, int]) -> Batch:
        """Return the `rows` of a batch of this shape with noise, which does not depend on which rows these are."""
        batch, ordinary_tokens = dict(batch), np.setdiff1d(np.arange(self.N_V), self.special).astype(np.int32)
        for name, length in (("z", "z_length"), ("x", "length")):
            if name not in batch:
                continue
            chosen, left_out = rng.random((2, *shape))[:, rows, : batch[name].shape[1]]
            others = ordinary_tokens[rng.integers(len(ordinary_tokens), size=shape)][rows, : batch[name].shape[1]]
            ordinary = ~np.isin(batch[name], self.special)
            read = np.where((chosen < self.noise) & ordinary, others, batch[name])
            if "label" in batch or name == "z":
                batch[name], batch[length] = _without(read, batch[length], (left_out < self.deletion) & ordinary)
            else:
                batch["x_read"] = read
        return batch


def _without(x: np.ndarray, lengths: np.ndarray, left_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows without some of their tokens, padded with the token of their last column, and their lengths."""
    kept = ~left_out | (np.arange(x.shape[1]) >= lengths[:, None])
    order = np.argsort(~kept, axis=1, kind="stable")
    moved = np.take_along_axis(x, order, axis=1)
    shorter = (lengths - (~kept).sum(axis=1)).astype(lengths.dtype)
    return np.where(np.arange(x.shape[1]) < shorter[:, None], moved, x[:, -1:]), shorter
