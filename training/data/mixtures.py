"""Mixtures: each batch draws its examples from several files, in proportion to their weights."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.data.batches import Batch, Examples, Shuffled
from training.data.records import DataError, fingerprint
from training.data.token_store import LabeledStore, PairStore, token_stores

PERIOD = 1 << 16  # positions, of which each part of a mixture has its share


class Weighted(NamedTuple):
    """A file with its weight among the examples; None if not given."""

    path: str
    weight: float | None


def weighted(name: str) -> Weighted:
    """Read FILE=WEIGHT, or FILE alone. Raises DataError if the weight is not positive."""
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
    """Return the weights of files, if given. Raises DataError if only some have one, or a file is given twice."""
    given = [one.weight for one in data if one.weight is not None]
    if given and len(given) < len(data):
        missing = next(one.path for one in data if one.weight is None)
        raise DataError(f"{missing} has no weight, but others have: give every file one, as in {missing}=0.5, or none")
    if given and len({one.path for one in data}) < len(data):
        raise DataError("a file is given twice: give it once, with the sum of both weights")
    return given


class Mixture(Examples):
    """Examples of several sources, in the ratio of their weights; each is shuffled and repeated on its own."""

    def __init__(self, parts: Sequence[Examples], weights: Sequence[float], *, too_long: str | None = None) -> None:
        self._parts, self._starts = parts, np.cumsum([0, *(part.n for part in parts)])
        self._shares = [weight / sum(weights) for weight in weights]
        super().__init__(n=int(self._starts[-1]), l_max=parts[0].l_max)
        self.n_too_long = sum(part.n_too_long for part in parts)
        self.too_long = parts[0].too_long if too_long is None else too_long

    def order(self, seed: int) -> Callable[[np.ndarray], np.ndarray]:
        """See `Examples.order`: in every period, each part has its share of the positions, spread evenly."""
        orders = [Shuffled(part.n, seed, k) for k, part in enumerate(self._parts)]
        counts = np.maximum(1, np.round(np.array(self._shares) * PERIOD)).astype(np.int64)
        parts, ranks = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(n) for n in counts])
        turns = np.argsort((ranks + 0.5) / counts[parts], kind="stable")
        parts, ranks = parts[turns], ranks[turns]  # of each position in a period

        def at(positions: np.ndarray) -> np.ndarray:
            periods, places = np.divmod(positions, len(parts))
            chosen, indices = parts[places], np.empty_like(positions)
            of_part = periods * counts[chosen] + ranks[places]
            for k, order in enumerate(orders):
                indices[chosen == k] = self._starts[k] + order.at(of_part[chosen == k])
            return indices

        return at

    def fingerprint(self, batch_size: int, seed: int) -> str:
        """See `Examples.fingerprint`."""
        parts = [part.fingerprint(batch_size, seed) for part in self._parts]
        return fingerprint(type(self).__name__, *parts, self._shares, self.l_max, batch_size, seed)

    def examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        """See `Examples.examples`."""
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


def mixture(store: Any, names: Sequence[str], weights: Sequence[float], make: Callable[[Any], Examples]) -> Mixture:
    """Return the mixture of a store's files, whose examples `make` returns. Raises DataError if one has too few."""
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
