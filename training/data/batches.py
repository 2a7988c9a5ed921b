"""Batches of examples, as NumPy arrays: the batch of step s depends on (seed, s, batch_size) alone.

    data = NextTokens(splits.train, l_max=128, batch_size=32, seed=0)       # "chunks", "windows", "packed"
    data = MaskedTokens(splits.train, l_max=128, batch_size=32, seed=0)     # the paper's rule or BERT's
    data = SequencePairs(splits.train, l_max=64, batch_size=32, seed=0)
    data = LabeledTexts(splits.train, l_max=64, batch_size=32, seed=0)

    data.batch(step)               # one batch, in any order of steps
    data.batch(step, rows=slice(0, 8))      # what one process of several needs of it
    data.batches(first_step)       # iterator from a step on, prefetched in the background by grain
    data.evaluation_batches()      # every example exactly once, in order
    data.n_examples, data.n_steps  # examples in an epoch; batches of `evaluation_batches`
    data.fingerprint               # for checkpoints; other data, tokenizer, seed or shape have another

Examples are shuffled anew in every epoch; batches continue across the epochs' borders. Token arrays are int32
[B, l], columns beyond a sequence hold eos_token; lengths are int32 [B]; masks are boolean. The last batch
of an evaluation is filled with empty rows, of length 0, with no true mask and the label −1: they must not
count.
"""

import abc
import itertools
from collections.abc import Iterator

import grain
import numpy as np

from training.data.packing import Chunks, pack
from training.data.records import DataError, fingerprint
from training.data.store import LabeledStore, PairStore, TokenStore

Batch = dict[str, np.ndarray]

ENDLESS = 1 << 60  # steps; grain's ranges are finite
EVALUATION = 1 << 32  # no seed is as large, so held-out masks are drawn apart from the training's


class Dataset(abc.ABC):
    """What all data sets of examples share; see the module's docstring.

    Attributes:
        l_max: tokens in a sequence, at most.
        batch_size: examples in a batch of all processes together.
        seed: decides the order of the examples and every random choice in them.
        n_examples: examples in one epoch.
        fingerprint: hash of everything that decides the batches.
        n_too_long: how many examples have more than l_max tokens, where that matters.
        too_long: how those are treated, in words.
    """

    n_too_long: int = 0
    too_long: str = ""

    def __init__(self, *identity: object, n_examples: int, l_max: int, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size: expected at least 1, got {batch_size}")
        if not 0 <= seed < 1 << 32:
            raise DataError(f"seed: expected 0 to 2³² − 1, got {seed}")
        self.l_max = l_max
        self.batch_size = batch_size
        self.seed = seed
        self.n_examples = n_examples
        self.fingerprint = fingerprint(type(self).__name__, *identity, l_max, batch_size, seed)
        self._order = grain.MapDataset.range(n_examples).seed(seed).shuffle().repeat()

    @property
    def tokens_per_byte(self) -> float | None:
        """Predicted tokens for each UTF-8 byte of the text; None where the tokens do not give every byte back."""
        return None

    @property
    def n_steps(self) -> int:
        """Batches that hold every example once."""
        return -(-self.n_examples // self.batch_size)

    def batch(self, step: int, *, rows: slice = slice(None)) -> Batch:
        """Return the training batch of a step, from 0, or some of its rows, the same whoever asks for which."""
        first = step * self.batch_size
        indices = np.array([self._order[first + i] for i in range(self.batch_size)], np.int64)
        return self._examples(indices, rows, np.random.default_rng([self.seed, step]))

    def batches(self, first_step: int = 0, *, rows: slice = slice(None)) -> Iterator[Batch]:
        """Return an endless iterator over the batches from a step on, read ahead by two threads."""
        steps = grain.MapDataset.range(first_step, ENDLESS)
        ahead = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
        return iter(steps.map(lambda step: self.batch(step, rows=rows)).to_iter_dataset(ahead))

    def evaluation_batches(self, *, rows: slice = slice(None)) -> Iterator[Batch]:
        """Yield every example exactly once, in order; empty rows fill the last batch."""
        for step in range(self.n_steps):
            first = step * self.batch_size
            indices = np.arange(first, first + self.batch_size)
            indices[indices >= self.n_examples] = -1
            yield self._examples(indices, rows, np.random.default_rng([EVALUATION, step]))

    @abc.abstractmethod
    def _examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        """Return `rows` of the batch of the examples with these numbers, −1 for an empty row."""


def _padded(store: TokenStore, starts: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """Return sequences of a store as rows of `width` columns, int32, filled with eos_token."""
    x = np.full((len(starts), width), store.N_V - 1, np.int32)
    for row, start, length in zip(x, starts, lengths, strict=True):
        row[:length] = store.tokens[start : start + length]
    return x


def _checked(store: TokenStore, l_max: int) -> TokenStore:
    """Return the store, if chunks of it are sequences to learn from."""
    if l_max < 2:
        raise DataError(f"l_max: expected at least 2, a token and the next one, got {l_max}")
    if store.part == "train" and store.n_tokens < l_max:
        raise DataError(
            f"the training data have {store.n_tokens} tokens, fewer than one sequence of l_max = {l_max}; "
            "give more data or a smaller l_max"
        )
    return store


def _located(chunks: Chunks, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and lengths of chunks, with length 0 for the number −1."""
    starts, lengths = chunks.locate(np.maximum(indices, 0))
    return starts, np.where(indices < 0, 0, lengths).astype(np.int32)


class NextTokens(Dataset):
    """Sequences for next-token prediction: in column t the target is x[t + 1].

    Modes:
        "chunks": a row is a document, or one of its chunks if it is longer than l_max. {"x", "length"}
        "windows": the documents one after another, cut into windows that attend across documents; two windows
            share one token, so that every token is predicted exactly once. {"x", "length"}
        "packed": a row has several chunks, best fit, kept apart by segment_ids (from 1; 0 is padding), with
            positions from 0 in each. loss_mask is true in the columns whose target x[t + 1] is in the same
            segment. {"x", "segment_ids", "positions", "loss_mask"}; the composition of rows is the same in
            every epoch.

    Conversations are always packed, each of them whole: one of more than l_max tokens is left out. Their loss_mask is
    true where the target is part of an answer.

    Raises:
        DataError: l_max < 2, training data shorter than one sequence, an unknown mode, a bad batch_size or
            seed; conversations that are not packed, or none that is short enough.
    """

    too_long = "conversations are left out"

    def __init__(self, store: TokenStore, *, l_max: int, batch_size: int, seed: int = 0, mode: str = "chunks") -> None:
        if mode not in ("chunks", "windows", "packed"):
            raise DataError(f"there is no mode {mode!r}; choose chunks, windows or packed")
        self.mode = mode
        if store.answers is not None:
            self.store, kept = store, self._kept(store, l_max)
            self._chunks = Chunks(store.offsets, max(2, int(store.lengths.max())), overlap=1)  # each is one chunk
        else:
            self.store = _checked(store, l_max)
            offsets = store.offsets[[0, -1]] if mode == "windows" else store.offsets
            self._chunks = Chunks(offsets, l_max, overlap=1)
            kept = np.arange(len(self._chunks))
        n_examples = len(kept)
        if mode == "packed":
            lengths = self._chunks.locate(kept)[1]
            order, self._row_starts = pack(lengths, l_max)
            self._packed = kept[order]
            n_examples = len(self._row_starts) - 1
        super().__init__(store.fingerprint, mode, n_examples=n_examples, l_max=l_max, batch_size=batch_size, seed=seed)

    def _kept(self, store: TokenStore, l_max: int) -> np.ndarray:
        """The conversations that are short enough."""
        if self.mode != "packed":
            raise DataError(f"--rows: expected packed for conversations, got {self.mode}; leave it out")
        kept = np.flatnonzero(store.lengths <= l_max)
        self.n_too_long = len(store) - len(kept)
        if not len(kept):
            raise DataError(
                f"none of the {len(store)} {store.part} conversations fits into l_max = {l_max} tokens; the shortest "
                f"needs {store.lengths.min()}"
            )
        return kept

    @property
    def tokens_per_byte(self) -> float | None:
        """Predicted tokens for each byte: all but bos, which windows have only once."""
        if not self.store.exact:
            return None
        n_bos = 1 if self.mode == "windows" else len(self.store)
        return (self.store.n_tokens - n_bos) / self.store.n_bytes

    def _examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        if self.mode == "packed":
            return self._packed_rows(indices[rows])
        starts, lengths = _located(self._chunks, indices[rows])
        return {"x": _padded(self.store, starts, lengths, self.l_max), "length": lengths}

    def _packed_rows(self, indices: np.ndarray) -> Batch:
        shape = (len(indices), self.l_max)
        x = np.full(shape, self.store.N_V - 1, np.int32)
        segment_ids, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        predicted, answers = np.ones(shape, bool), self.store.answers
        first, end = self._row_starts[indices], self._row_starts[indices + 1]
        end = np.where(indices < 0, first, end)
        items = [self._packed[a:b] for a, b in zip(first, end, strict=True)]
        chunks = zip(*self._chunks.locate(np.concatenate(items)), strict=True)
        for b, row in enumerate(items):
            column = 0
            for s, (start, length) in enumerate(itertools.islice(chunks, len(row)), start=1):
                segment = slice(column, column + length)
                x[b, segment] = self.store.tokens[start : start + length]
                segment_ids[b, segment] = s
                positions[b, segment] = np.arange(length)
                if answers is not None:
                    predicted[b, segment] = answers[start : start + length]
                column += length
        loss_mask = np.zeros(shape, bool)
        loss_mask[:, :-1] = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0) & predicted[:, 1:]
        return {"x": x, "segment_ids": segment_ids, "positions": positions, "loss_mask": loss_mask}


class MaskedTokens(Dataset):
    """Sequences with masked tokens to recover: {"x", "x_masked", "loss_mask", "length"}, disjoint chunks.

    Rules:
        "paper": every token, bos and eos too, becomes mask_token with probability p_mask; the loss is on those.
        "bert": every token but bos and eos is chosen with probability p_mask; of the chosen 80 % become
            mask_token, 10 % a random ordinary token, 10 % stay; the loss is on all that are chosen.

    Raises:
        DataError: as `NextTokens`, and if p_mask is not between 0 and 1.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        l_max: int,
        batch_size: int,
        seed: int = 0,
        p_mask: float = 0.15,
        rule: str = "paper",
    ) -> None:
        if rule not in ("paper", "bert"):
            raise DataError(f"there is no masking rule {rule!r}; choose paper or bert")
        if not 0 < p_mask < 1:
            raise DataError(f"p_mask: expected a probability between 0 and 1, got {p_mask}")
        self.store = _checked(store, l_max)
        self.p_mask = p_mask
        self.rule = rule
        self._chunks = Chunks(store.offsets, l_max, overlap=0)
        super().__init__(
            store.fingerprint, rule, p_mask, n_examples=len(self._chunks), l_max=l_max, batch_size=batch_size, seed=seed
        )

    def _examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        chosen, action = rng.random((2, len(indices), self.l_max))[:, rows]
        others = rng.integers(
            self.store.N_V - (3 if self.store.special is None else 0), size=(len(indices), self.l_max), dtype=np.int32
        )[rows]
        starts, lengths = _located(self._chunks, indices[rows])
        x = _padded(self.store, starts, lengths, self.l_max)
        loss_mask = (chosen < self.p_mask) & (np.arange(self.l_max) < lengths[:, None])
        mask_token = np.int32(self.store.special_token("mask"))
        special = [self.store.special_token(name) for name in ("mask", "bos", "eos")]
        if self.rule == "paper":
            x_masked = np.where(loss_mask, mask_token, x)
        else:
            loss_mask &= ~np.isin(x, special)
            replaced = np.where(action < 0.8, mask_token, np.where(action < 0.9, others, x))
            x_masked = np.where(loss_mask, replaced, x)
        return {"x": x, "x_masked": x_masked, "loss_mask": loss_mask, "length": lengths}


class SequencePairs(Dataset):
    """Source and target sequences: {"z", "z_length", "x", "x_length"}, each with bos and eos.

    A pair is left out if one side, with bos and eos, has more than l_max tokens: training on fragments would
    teach the model to translate fragments.

    Raises:
        DataError: no pair is short enough, or a bad l_max, pad_multiple, batch_size or seed.
    """

    too_long = "pairs are left out"

    def __init__(
        self, store: PairStore, *, l_max: int, batch_size: int, seed: int = 0, pad_multiple: int | None = None
    ) -> None:
        """Make the data set; with pad_multiple a batch is as wide as its longest sequence, rounded up to a
        multiple of it, otherwise l_max wide.
        """
        if pad_multiple is not None and pad_multiple < 1:
            raise DataError(f"pad_multiple: expected at least 1, got {pad_multiple}")
        self.store = store
        self.pad_multiple = pad_multiple
        longest = np.maximum(store.source.lengths, store.target.lengths)
        self._kept = np.flatnonzero(longest <= l_max)
        self.n_too_long = len(store) - len(self._kept)
        if not len(self._kept):
            raise DataError(
                f"none of the {len(store)} {store.source.part} pairs fits into l_max = {l_max} tokens, bos "
                f"and eos included; the shortest needs {longest.min() if len(store) else 'none'}"
            )
        super().__init__(
            store.source.fingerprint,
            store.target.fingerprint,
            pad_multiple,
            n_examples=len(self._kept),
            l_max=l_max,
            batch_size=batch_size,
            seed=seed,
        )

    def _width(self, lengths: np.ndarray) -> int:
        if self.pad_multiple is None:
            return self.l_max
        return min(self.l_max, -(-int(lengths.max()) // self.pad_multiple) * self.pad_multiple)

    def _side(self, store: TokenStore, indices: np.ndarray, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        kept = self._kept[np.maximum(indices, 0)]
        starts = store.offsets[kept]
        lengths = np.where(indices < 0, 0, store.offsets[kept + 1] - starts).astype(np.int32)
        return _padded(store, starts[rows], lengths[rows], self._width(lengths)), lengths[rows]

    def _examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        z, z_length = self._side(self.store.source, indices, rows)
        x, x_length = self._side(self.store.target, indices, rows)
        return {"z": z, "z_length": z_length, "x": x, "x_length": x_length}


class LabeledTexts(Dataset):
    """Texts and their classes: {"x", "length", "label"}.

    Of a text with more than l_max tokens, the first l_max − 1 and eos are kept.

    Raises:
        DataError: a bad l_max, batch_size or seed.
    """

    too_long = "texts are cut"

    def __init__(self, store: LabeledStore, *, l_max: int, batch_size: int, seed: int = 0) -> None:
        if l_max < 2:
            raise DataError(f"l_max: expected at least 2, for bos and eos, got {l_max}")
        self.store = store
        self.n_too_long = int(np.count_nonzero(store.text.lengths > l_max))
        super().__init__(
            store.text.fingerprint, store.names, n_examples=len(store), l_max=l_max, batch_size=batch_size, seed=seed
        )

    def _examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        indices = indices[rows]
        starts = self.store.text.offsets[indices]
        lengths = self.store.text.lengths[indices]
        lengths = np.where(indices < 0, 0, np.minimum(lengths, self.l_max)).astype(np.int32)
        x = _padded(self.store.text, starts, lengths, self.l_max)
        x[:, -1] = self.store.text.special_token("eos")  # of a text that is cut, too
        label = np.where(indices < 0, -1, self.store.labels[indices]).astype(np.int32)
        return {"x": x, "length": lengths, "label": label}
