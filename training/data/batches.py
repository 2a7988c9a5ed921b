"""Batches of examples, as NumPy arrays: the batch of step s depends on (seed, s, batch_size) alone.

    source = NextTokens(splits.train, l_max=128)       # or MaskedTokens, SequencePairs, LabeledTexts
    data = Batches(source, batch_size=32, seed=0)
    data.batch(step, rows=slice(0, 8))  # the batch of any step; the rows that one of several processes needs
    data.batches(first_step)            # endless iterator, prefetched by a thread
    data.evaluation_batches()           # every example exactly once, in order
    data.evaluation_batches(sample=32)  # this many batches of examples drawn at random, always the same

The examples of each epoch are in an order of its own, a permutation drawn from (seed, epoch); a batch may span two
epochs. Token arrays are int32 [B, l], padded with the last token of the vocabulary, the paper's eos_token; lengths are
int32 [B]; masks are boolean. Empty rows fill the last batch of an evaluation: they have length 0, a mask that is false
everywhere and the label −1, and must not count.
"""

import abc
import collections
import concurrent.futures
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Int

from training.data.records import DataError, fingerprint
from training.data.token_store import LabeledStore, PairStore, TokenStore

AHEAD = 4  # batches that are made before they are needed
NOISE, ORDER = 3, 4  # separate the random numbers of the noise and of the order from those of the batches
EVALUATION = 1 << 32  # larger than any seed, so the masks of held-out data differ from those of training


Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """A function of a batch: some tokens that are read are replaced or deleted; what is predicted is unchanged. `d` and
    `ed` read `x_read`, and `ed` `z`, `classify` `x`, with noise; `e` has none, since it masks tokens already. Special
    tokens, padding and evaluation batches have none.
    """

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


class Shuffled:
    """The order of n examples, another in every epoch: the index of the example at each position of an endless row."""

    def __init__(self, n: int, *seed: int) -> None:
        self._n, self._seed = n, seed
        self._epoch = functools.lru_cache(maxsize=2)(self._permutation)

    def _permutation(self, epoch: int) -> Int[np.ndarray, " n"]:
        return np.random.default_rng([*self._seed, ORDER, 1 + epoch]).permutation(self._n)

    def at(self, positions: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """Return the indices of the examples at these positions."""
        epochs, places = np.divmod(positions, self._n)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs):
            indices[epochs == epoch] = self._epoch(int(epoch))[places[epochs == epoch]]
        return indices


def prefetched(make: Callable[[int], Batch], first: int) -> Iterator[Batch]:
    """Yield what `make` returns for `first`, `first` + 1, …, computed in their order by a thread."""
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="batches")
    waiting = collections.deque(thread.submit(make, step) for step in range(first, first + AHEAD))
    for step in itertools.count(first + AHEAD):
        batch = waiting.popleft().result()
        waiting.append(thread.submit(make, step))
        yield batch


class Chunks:
    """The chunks of sequences, of at most l_max tokens, by index; they share `overlap`: 1 to predict the next."""

    def __init__(self, offsets: Int[np.ndarray, " sequences+1"], l_max: int, overlap: int) -> None:
        self.l_max, self.overlap, self._offsets = l_max, overlap, offsets
        lengths = np.diff(offsets)
        counts = np.maximum(1, -(-(lengths - overlap) // (l_max - overlap)))
        self._ends = np.cumsum(np.where(lengths > 0, counts, 0))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate(self, indices: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Return the starts and lengths of the chunks with these indices."""
        sequence = np.searchsorted(self._ends, indices, side="right")
        first = np.where(sequence > 0, self._ends[sequence - 1], 0)
        starts = self._offsets[sequence] + (indices - first) * (self.l_max - self.overlap)
        return starts, np.minimum(self.l_max, self._offsets[sequence + 1] - starts)


def pack(lengths: Int[np.ndarray, " n"], capacity: int) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " rows+1"]]:
    """Pack items into rows by best fit decreasing: return the items' indices row by row, and where each row starts."""
    by_length, row_of, n_rows = np.argsort(lengths, kind="stable"), np.empty(len(lengths), np.int64), 0
    ends = np.cumsum(np.bincount(lengths, minlength=capacity + 1))
    rows_with = [np.zeros(0, np.int64) for _ in range(capacity + 1)]  # the rows with this much room
    for length in range(capacity, 0, -1):
        items = by_length[ends[length - 1] : ends[length]]
        for room in range(length, capacity + 1):  # the tightest first
            each = room // length
            if room == capacity:
                rows_with[room] = np.arange(n_rows, n_rows - (-len(items) // each))
                n_rows += len(rows_with[room])
            if not (len(items) and len(rows_with[room])):
                continue
            rows, rows_with[room] = np.split(rows_with[room], [-(-len(items) // each)])
            taken = np.repeat(rows, each)[: len(items)]
            row_of[items[: len(taken)]], items = taken, items[len(taken) :]
            left = room - (len(taken) - each * (len(rows) - 1)) * length  # in the last of these rows
            rows_with[left] = np.append(rows_with[left], rows[-1:])
            rows_with[room - each * length] = np.append(rows_with[room - each * length], rows[:-1])
    return np.argsort(row_of, kind="stable"), np.append(0, np.cumsum(np.bincount(row_of, minlength=n_rows)))


class Examples(abc.ABC):
    """n examples by index, of at most l_max tokens each; `identity` is everything else that decides them."""

    n_too_long: int = 0  # examples with more than l_max tokens, if they are treated differently
    too_long: str = ""  # how they are treated, in words

    def __init__(self, *identity: object, n: int, l_max: int) -> None:
        self.identity, self.n, self.l_max = identity, n, l_max

    @abc.abstractmethod
    def examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        """Return `rows` of the batch of the examples with these indices; −1 gives an empty row."""

    @property
    def tokens_per_byte(self) -> float | None:
        """Predicted tokens per UTF-8 byte of the text; None if the tokens do not decode to the exact text."""
        return None

    def order(self, seed: int) -> Callable[[np.ndarray], np.ndarray]:
        """Return the order of training: a function from positions to the indices of the examples there."""
        return Shuffled(self.n, seed).at

    def fingerprint(self, batch_size: int, seed: int) -> str:
        """Return the hash of everything that decides the batches of this size."""
        return fingerprint(type(self).__name__, *self.identity, self.l_max, batch_size, seed)


class Batches:
    """The batches of a source, with `noise` if given; `fingerprint` is a hash of everything that decides them."""

    def __init__(self, source: Examples, *, batch_size: int, seed: int = 0, noise: Noise | None = None) -> None:
        """Raise DataError for a bad batch_size or seed."""
        if batch_size < 1:
            raise DataError(f"batch_size: expected at least 1, got {batch_size}")
        if not 0 <= seed < 1 << 32:
            raise DataError(f"seed: expected 0 to 2³² − 1, got {seed}")
        self.source, self.batch_size, self.seed, self._noise = source, batch_size, seed, noise
        self.n_examples, self.fingerprint = source.n, source.fingerprint(batch_size, seed)
        if noise is not None:
            sizes = source.l_max, batch_size, seed
            self.fingerprint = fingerprint("Noisy", self.fingerprint, noise.noise, noise.deletion, *sizes)

    @functools.cached_property
    def _order(self) -> Callable[[np.ndarray], np.ndarray]:
        return self.source.order(self.seed)

    @property
    def tokens_per_byte(self) -> float | None:
        """See the source's."""
        return self.source.tokens_per_byte

    @property
    def n_steps(self) -> int:
        """Batches in `evaluation_batches`."""
        return -(-self.n_examples // self.batch_size)

    def batch(self, step: int, *, rows: slice = slice(None)) -> Batch:
        """Return the training batch of a step, counted from 0, or some of its rows: the same as in the whole batch."""
        indices = self._order(step * self.batch_size + np.arange(self.batch_size))
        batch = self.source.examples(indices, rows, np.random.default_rng([self.seed, step]))
        if self._noise is None:
            return batch
        rng = np.random.default_rng([self.seed, NOISE, step])
        return self._noise(batch, rng, rows, (self.batch_size, self.source.l_max))

    def batches(self, first_step: int = 0, *, rows: slice = slice(None)) -> Iterator[Batch]:
        """Return an endless iterator over the batches, starting at a step; a thread prefetches them."""
        return prefetched(lambda step: self.batch(step, rows=rows), first_step)

    def evaluation_batches(self, *, rows: slice = slice(None), sample: int = 0) -> Iterator[Batch]:
        """Yield every example once, in order, or `sample` batches, always the same; empty rows fill the last."""
        n, order = self.n_steps, np.arange(self.n_examples)
        if 0 < sample < n:
            n, order = sample, np.random.default_rng(EVALUATION).permutation(self.n_examples)
        for step in range(n):
            indices = order[step * self.batch_size : (step + 1) * self.batch_size]
            indices = np.pad(indices, (0, self.batch_size - len(indices)), constant_values=-1)
            yield self.source.examples(indices, rows, np.random.default_rng([EVALUATION, step]))


def _padded(store: TokenStore, starts: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """Return sequences of a store as padded rows of `width` columns, int32."""
    x = np.full((len(starts), width), store.N_V - 1, np.int32)
    for row, start, length in zip(x, starts, lengths, strict=True):
        row[:length] = store.tokens[start : start + length]
    return x


def _fitting(lengths: np.ndarray, l_max: int, examples: str) -> np.ndarray:
    """Return the indices of the examples with at most l_max tokens."""
    kept = np.flatnonzero(lengths <= l_max)
    if not len(kept):
        raise DataError(
            f"none of the {len(lengths)} {examples} fits into l_max = {l_max} tokens, special tokens included; "
            f"the shortest needs {lengths.min() if len(lengths) else 'none'}"
        )
    return kept


def _checked(store: TokenStore, l_max: int) -> TokenStore:
    if l_max < 2:
        raise DataError(f"l_max: expected at least 2, a token and the next one, got {l_max}")
    if store.part == "train" and store.n_tokens < l_max:
        raise DataError(
            f"the training data have {store.n_tokens} tokens, fewer than one sequence of l_max = {l_max}; "
            "give more data or a smaller l_max"
        )
    return store


def _located(chunks: Chunks, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and lengths of chunks; index −1 has length 0."""
    starts, lengths = chunks.locate(np.maximum(indices, 0))
    return starts, np.where(indices < 0, 0, lengths).astype(np.int32)


def _whole(store: TokenStore, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and lengths of whole sequences; index −1 has length 0."""
    starts = store.offsets[indices]
    return starts, np.where(indices < 0, 0, store.offsets[indices + 1] - starts).astype(np.int32)


class NextTokens(Examples):
    """Sequences for next-token prediction: the target of column t is x[t + 1].

    Modes:
        "chunks": a row is a document, or a chunk of one longer than l_max. {"x", "length"}
        "windows": the documents are joined and cut into windows that attend across documents; consecutive windows
            share one token, so that every token is predicted exactly once. {"x", "length"}
        "packed": a row holds several chunks (best fit), the same in every epoch, separated by segment_ids (from 1; 0 is
            padding). loss_mask is true in the columns whose target x[t + 1] is in the same segment. {"x",
            "segment_ids", "loss_mask"}

    Conversations are always packed, and never split: those with more than l_max tokens are left out. Their loss_mask is
    true in the columns whose target is part of an answer. Raises DataError for too few data or a bad mode.
    """

    too_long = "conversations are left out"

    def __init__(self, store: TokenStore, *, l_max: int, mode: str = "chunks") -> None:
        if mode not in ("chunks", "windows", "packed"):
            raise DataError(f"there is no mode {mode!r}; choose chunks, windows or packed")
        self.mode = mode
        if store.answers is not None:
            if mode != "packed":
                raise DataError(f"--rows: expected packed for conversations, got {mode}; leave it out")
            self.store, kept = store, _fitting(store.lengths, l_max, f"{store.part} conversations")
            self.n_too_long = len(store) - len(kept)
            self._chunks = Chunks(store.offsets, max(2, int(store.lengths.max())), overlap=1)  # each is one chunk
        else:
            self.store = _checked(store, l_max)
            offsets = store.offsets[[0, -1]] if mode == "windows" else store.offsets
            self._chunks = Chunks(offsets, l_max, overlap=1)
            kept = np.arange(len(self._chunks))
        n = len(kept)
        if mode == "packed":
            lengths = self._chunks.locate(kept)[1]
            order, self._row_starts = pack(lengths, l_max)
            self._packed = kept[order]
            n = len(self._row_starts) - 1
        super().__init__(store.fingerprint, mode, n=n, l_max=l_max)

    @property
    def tokens_per_byte(self) -> float | None:
        """Predicted tokens per byte: all but each document's bos, or in windows all but the first one."""
        if not self.store.exact:
            return None
        n_bos = 1 if self.mode == "windows" else len(self.store)
        return (self.store.n_tokens - n_bos) / self.store.n_bytes

    def examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        """See `Examples.examples`."""
        if self.mode == "packed":
            return self._packed_rows(indices[rows])
        starts, lengths = _located(self._chunks, indices[rows])
        return {"x": _padded(self.store, starts, lengths, self.l_max), "length": lengths}

    def _packed_rows(self, indices: np.ndarray) -> Batch:
        shape = (len(indices), self.l_max)
        x = np.full(shape, self.store.N_V - 1, np.int32)
        segment_ids, predicted, answers = np.zeros(shape, np.int32), np.ones(shape, bool), self.store.answers
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
                if answers is not None:
                    predicted[b, segment] = answers[start : start + length]
                column += length
        loss_mask = np.zeros(shape, bool)
        loss_mask[:, :-1] = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0) & predicted[:, 1:]
        return {"x": x, "segment_ids": segment_ids, "loss_mask": loss_mask}


class MaskedTokens(Examples):
    """Sequences with masked tokens to recover, from disjoint chunks: {"x", "x_masked", "loss_mask", "length"}. By the
    rule "paper", every token, including bos and eos, becomes mask_token with probability p_mask; the loss is on those.
    By "bert", every token but bos and eos is chosen with probability p_mask; of the chosen, on which the loss is, 80 %
    become mask_token, 10 % a random ordinary token, and 10 % stay. By "diffusion", every sequence draws its own p_mask,
    uniform in [1/1000, 1), and the loss is divided by it: "loss_mask" has 1/p_mask.
    """

    def __init__(self, store: TokenStore, *, l_max: int, p_mask: float = 0.15, rule: str = "paper") -> None:
        if rule not in ("paper", "bert", "diffusion"):
            raise DataError(f"there is no masking rule {rule!r}; choose paper, bert or diffusion")
        if not 0 < p_mask < 1:
            raise DataError(f"p_mask: expected a probability between 0 and 1, got {p_mask}")
        self.store, self.p_mask, self.rule = _checked(store, l_max), p_mask, rule
        self._chunks = Chunks(store.offsets, l_max, overlap=0)
        super().__init__(store.fingerprint, rule, p_mask, n=len(self._chunks), l_max=l_max)

    def examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        """See `Examples.examples`."""
        chosen, action = rng.random((2, len(indices), self.l_max))[:, rows]
        others = rng.integers(
            self.store.N_V - (3 if self.store.special is None else 0), size=(len(indices), self.l_max), dtype=np.int32
        )[rows]
        starts, lengths = _located(self._chunks, indices[rows])
        x = _padded(self.store, starts, lengths, self.l_max)
        of_sequences = np.full((len(lengths), 1), self.p_mask)
        if self.rule == "diffusion":
            of_sequences = rng.uniform(1e-3, 1, (len(indices), 1))[rows]
        loss_mask = (chosen < of_sequences) & (np.arange(self.l_max) < lengths[:, None])
        special = [self.store.special_token(name) for name in ("mask", "bos", "eos")]
        replacement = np.full_like(x, special[0])
        if self.rule == "bert":
            loss_mask &= ~np.isin(x, special)
            replacement = np.where(action < 0.8, replacement, np.where(action < 0.9, others, x))
        x_masked = np.where(loss_mask, replacement, x)
        loss_mask = (loss_mask / of_sequences).astype(np.float32) if self.rule == "diffusion" else loss_mask
        return {"x": x, "x_masked": x_masked, "loss_mask": loss_mask, "length": lengths}


class SequencePairs(Examples):
    """Pairs: {"z", "z_length", "x", "x_length"}, with bos and eos, in at most l_max tokens each, others left out."""

    too_long = "pairs are left out"

    def __init__(self, store: PairStore, *, l_max: int) -> None:
        self.store = store
        longest = np.maximum(store.source.lengths, store.target.lengths)
        self._kept = _fitting(longest, l_max, f"{store.source.part} pairs")
        self.n_too_long = len(store) - len(self._kept)
        super().__init__(store.source.fingerprint, store.target.fingerprint, n=len(self._kept), l_max=l_max)

    def examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        """See `Examples.examples`."""
        batch, indices = {}, indices[rows]
        for name, store in (("z", self.store.source), ("x", self.store.target)):
            starts, lengths = _whole(store, np.where(indices < 0, -1, self._kept[indices]))
            batch |= {name: _padded(store, starts, lengths, self.l_max), f"{name}_length": lengths}
        return batch


class LabeledTexts(Examples):
    """Texts and their classes: {"x", "length", "label"}; of more than l_max tokens, the first l_max − 1 and eos."""

    too_long = "texts are cut"

    def __init__(self, store: LabeledStore, *, l_max: int) -> None:
        if l_max < 2:
            raise DataError(f"l_max: expected at least 2, for bos and eos, got {l_max}")
        self.store = store
        self.n_too_long = int(np.count_nonzero(store.text.lengths > l_max))
        super().__init__(store.text.fingerprint, store.names, n=len(store), l_max=l_max)

    def examples(self, indices: np.ndarray, rows: slice, rng: np.random.Generator) -> Batch:
        """See `Examples.examples`."""
        indices = indices[rows]
        starts, lengths = _whole(self.store.text, indices)
        lengths = np.minimum(lengths, self.l_max)
        x = _padded(self.store.text, starts, lengths, self.l_max)
        x[:, -1] = self.store.text.special_token("eos")  # ends a text that was cut
        label = np.where(indices < 0, -1, self.store.labels[indices]).astype(np.int32)
        return {"x": x, "length": lengths, "label": label}
