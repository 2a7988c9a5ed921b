"""Records of a data set, the error of the data layer, and the split into training, validation and test.

A record has `where` (file and line, or the entry's name) for error messages. A `Corpus` holds three re-iterable
collections of one type. They may be lists or streams over files, which have no length.

    corpus = training.data.corpora.load_corpus("docs")            # a named data set
    corpus = training.data.files.read_corpus(["a.txt"], "text")     # the user's files
    splits = training.data.token_store.tokenize(corpus, tokenizer)   # on disk, memory-mapped

The split depends on the contents of the records alone: a record's key (its text, or a pair's source, with white space
normalized) is hashed, and the records with the smallest hashes are held out. Records with equal keys are in the same
part, whatever the order of the files.
"""

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
from jaxtyping import Bool, UInt8, UInt64

TEST, VALIDATION, TRAIN = range(3)
"""The parts of a data set, as `divided` numbers them."""
Kind = Literal["text", "pairs", "labeled", "conversations"]


def printable(text: str) -> str:
    """Return a text with escapes in place of what is not Unicode, such as bytes of a file's name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


class DataError(ValueError):
    """An error in the data; the message is one sentence, with file and line if they are known."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class EmptyRecordError(DataError):
    """A record with nothing to learn from, which is left out, counted and reported; the message says what it lacks."""


class Document(NamedTuple):
    """A text of a text corpus, or a conversation: its messages, and the tools that they name, as a JSON object."""

    text: str
    where: str = ""


class Pair(NamedTuple):
    """A source text and its target text."""

    source: str
    target: str
    where: str = ""


class Labeled(NamedTuple):
    """A text and its class."""

    label: str
    text: str
    where: str = ""


R = TypeVar("R", Document, Pair, Labeled)


@dataclass(frozen=True, kw_only=True)
class Corpus(Generic[R]):
    """A data set, split."""

    name: str  # as the user gave it
    kind: Kind  # "text", "pairs", "labeled" or "conversations"
    fingerprint: str  # hash of the contents and of the split
    train: Iterable[R]  # re-iterable, like the next two
    validation: Iterable[R]
    test: Iterable[R]  # may be empty
    held_out: float = 0.0  # the share that should be held out for validation; 0 if no share was requested
    files: tuple[str, ...] = ()  # the files, in order, whose records the store should count; empty if none
    n_bytes: int = 0  # size of the data, roughly; 0 if unknown
    notes: Callable[[], Sequence[str]] = tuple  # returns sentences about records that are left out; reads the data

    def parts(self) -> dict[str, Iterable[R]]:
        """Return the three collections by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


def normalized(text: str) -> str:
    """Return `text` with every run of white space replaced by one space, and stripped."""
    return " ".join(text.split())


def record_key(record: Document | Pair | Labeled) -> str:
    """Return the key that decides a record's part, normalized: a pair's source, otherwise the whole text."""
    return normalized(record.source if isinstance(record, Pair) else record.text)


def contents_key(record: Document | Pair | Labeled) -> str:
    """Return what identical records share: all their fields, normalized."""
    return normalized("\t".join(record[:-1]))


def hash64(text: str) -> int:
    """Return a 64-bit hash of `text` that is the same on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def fingerprint(*parts: object) -> str:
    """Return the SHA-256, in hexadecimal, of the parts as strings, each prefixed by its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Part:
    """A part of the records of files, chosen when it is first read, and read again at each iteration."""

    records: Any  # has the `hashes` of the keys of all records, [n], and `read`, which yields those of a mask
    chosen: Callable[[], Bool[np.ndarray, " n"]]  # returns which records are in the part

    def __iter__(self) -> Iterator[Any]:
        return self.records.read(self.chosen())

    def sampled(self, share: float) -> "Part":
        """Return roughly this share of the records, chosen by their hashes without reading them."""
        return Part(self.records, lambda: self.chosen() & _drawn(self.records.hashes, share))


@dataclass(frozen=True)
class Listed:
    """Records that are read when they are first iterated over, and kept in memory."""

    records: Iterable[Any]

    @functools.cached_property
    def _list(self) -> list[Any]:
        return list(self.records)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list)


def _drawn(hashes: UInt64[np.ndarray, " n"], share: float) -> Bool[np.ndarray, " n"]:
    """Return which hashes are in a sample. The last 32 bits decide, as the first ones decide what is held out."""
    return (hashes & np.uint64(0xFFFFFFFF)) < share * 2**32


def sampled(records: Iterable[R], share: float) -> Iterable[R]:
    """Return roughly this share of the records, chosen by their keys, so that every run chooses the same."""
    if share >= 1:
        return records
    if isinstance(records, Part):
        return cast(Iterable[R], records.sampled(share))
    listed = list(records)
    return list(itertools.compress(listed, _drawn(_hashes(listed, record_key), share)))


def _hashes(records: Iterable[R], key: Callable[[R], str]) -> UInt64[np.ndarray, " n"]:
    return np.fromiter((hash64(key(r)) for r in records), np.uint64)


def divided(hashes: UInt64[np.ndarray, " n"], fractions: tuple[float, float], *, name: str) -> UInt8[np.ndarray, " n"]:
    """Return the part of each record, TRAIN, VALIDATION or TEST, by the hashes of their keys: equal keys are in one
    part, a positive fraction holds out at least one. A key of so many records that they are more than the fractions
    stays in training. Raises DataError if too few are left.
    """
    distinct, which, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    n_validation, n_test = (max(1, round(f * len(distinct))) if f > 0 else 0 for f in fractions)
    if n_validation + n_test >= len(distinct):
        raise DataError(
            f"{name} has {len(distinct)} distinct record{'s' * (len(distinct) != 1)}, too few to hold some out for "
            "validation; give more data or a validation file"
        )
    rare = np.flatnonzero(counts <= max(counts.min(), sum(fractions) * len(hashes)))
    part = np.full(len(distinct), TRAIN, np.uint8)
    part[rare[:n_test]], part[rare[n_test : n_test + n_validation]] = TEST, VALIDATION
    return part[which]


def hold_out(
    records: Sequence[R], fractions: tuple[float, float], *, name: str, key: Callable[[R], str] = record_key
) -> tuple[list[R], list[R], list[R]]:
    """Return the records for train, validation and test, as `divided`."""
    part = divided(_hashes(records, key), fractions, name=name)
    train, validation, test = (list(itertools.compress(records, part == i)) for i in (TRAIN, VALIDATION, TEST))
    return train, validation, test


def joined_bytes(documents: Iterable[Document]) -> bytes:
    """Return the documents' text as UTF-8, joined by blank lines: the bytes that bits per byte refer to."""
    return "\n\n".join(d.text for d in documents).encode()
