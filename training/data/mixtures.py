"""Mixtures: each batch draws its examples from several files, in proportion to their weights."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.data.batches import Batch, Dataset
from training.data.records import DataError
from training.data.store import LabeledStore, PairStore, token_stores


class Weighted(NamedTuple):
    """A file with its weight among the examples; None if not given."""

    path: str
    weight: float | None


def weighted(name: str) -> Weighted:
    """Read FILE=WEIGHT, or FILE alone.

    Raises:
        DataError: the weight is not positive.

    Example:
        >>> weighted("a.txt=0.25"), weighted("a.txt")
        (Weighted(path='a.txt', weight=0.25), Weighted(path='a.txt', weight=None))
    """
    path, equals, number = name.rpartition("=")
    if not equals or Path(name).exists():
        return Weighted(name, None)
    try:
        weight = float(number)
    except ValueError:
        return Weighted(name, None)
    if not 0 < weight < math.inf:
        raise DataError(f"{name}: expected a positive weight, got {number}")
    return Weighted(path, weight)


def weights_of(data: Sequence[Weighted]) -> list[float]:
    """Return the weights of files, or an empty list if none are given. Raises DataError if only some files have one, or
    a file is given twice.
    """
    given = [one.weight for one in data if one.weight is not None]
    if given and len(given) < len(data):
        missing = next(one.path for one in data if one.weight is None)
        raise DataError(f"{missing} has no weight, but others have: give every file one, as in {missing}=0.5, or none")
    if given and len({one.path for one in data}) < len(data):
        raise DataError("a file is given twice: give it once, with the sum of both weights")
    return given


class Mixture(Dataset):
    """Examples drawn from several data sets of one kind and shape, in the ratio of their weights.

    Each data set is shuffled and repeated on its own, so all of its examples are drawn equally often.
    """

    def __init__(self, parts: Sequence[Dataset], weights: Sequence[float]) -> None:
        first = parts[0]
        self._parts = parts
        self._starts = np.cumsum([0, *(part.n_examples for part in parts)])
        self._shares = [weight / sum(weights) for weight in weights]
        sizes = {"l_max": first.l_max, "batch_size": first.batch_size, "seed": first.seed}
        fingerprints = [part.fingerprint for part in parts]
        super().__init__(*fingerprints, self._shares, n_examples=int(self._starts[-1]), **sizes)
        self.n_too_long, self.too_long = sum(part.n_too_long for part in parts), first.too_long

    @functools.cached_property
    def _order(self) -> Any:
        import grain

        orders = [
            grain.MapDataset.range(start, end).seed(self.seed + k).shuffle().repeat()
            for k, (start, end) in enumerate(itertools.pairwise(self._starts.tolist()))
        ]
        return grain.MapDataset.mix(orders, weights=self._shares)

    def examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        """As `Dataset.examples`."""
        batch: Batch = {}
        for k, part in enumerate(self._parts):
            own = (self._starts[k] <= indices) & (indices < self._starts[k + 1])
            found = part.examples(np.where(own, indices - self._starts[k], -1), rows, rng)
            for name, array in found.items():
                chosen = own[rows].reshape(-1, *(1,) * (array.ndim - 1))
                batch[name] = np.where(chosen, array, batch[name]) if name in batch else array
        return batch


def documents(store: Any, first: int, end: int) -> Any:
    """Return a store with only the texts, pairs or labeled texts of indices `first` to `end` − 1."""
    if isinstance(store, PairStore):
        return PairStore(documents(store.source, first, end), documents(store.target, first, end))
    if isinstance(store, LabeledStore):
        return dataclasses.replace(store, text=documents(store.text, first, end), labels=store.labels[first:end])
    offsets = store.offsets[first : end + 1]
    return dataclasses.replace(
        store,
        tokens=store.tokens[offsets[0] : offsets[-1]],
        offsets=offsets - offsets[0],
        answers=None if store.answers is None else store.answers[offsets[0] : offsets[-1]],
        fingerprint=f"{store.fingerprint}[{first}:{end}]",
    )


def mixture(store: Any, names: Sequence[str], weights: Sequence[float], make: Callable[[Any], Dataset]) -> Mixture:
    """Return the mixture of the files of a store, which has counted their records; `make` returns the data set of a
    file's store. Raises DataError if a file has too few records.
    """
    ends = np.cumsum([0, *token_stores(store)[0].counts]).tolist()
    parts = []
    for name, (first, end) in zip(names, itertools.pairwise(ends), strict=True):
        if first == end:
            raise DataError(f"{name} is entirely held out: give it more data, or leave it out of the mixture")
        try:
            parts.append(make(documents(store, first, end)))
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
    return Mixture(parts, weights)
