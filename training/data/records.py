"""Records of a data set, the one error of the data layer, and the split into training, validation and test.

Four kinds of data, four record types, each with `where` (file and line, or the entry's name) for messages:

* text: `Document(text, where)`;
* pairs: `Pair(source, target, where)`;
* labeled text: `Labeled(label, text, where)`;
* conversations: `Conversation(text, where)`.

A `Corpus` holds three re-iterable collections of one record type. They may be lists or streams over files,
so a user iterates over them and never asks for their length.

    corpus = training.data.corpora.load_corpus("docs")            # a named data set
    corpus = training.data.files.read_corpus(["a.txt"], "text")     # the user's files
    splits = training.data.store.tokenize_text(corpus, tokenizer)   # on disk, memory-mapped

The split depends on the records' contents alone: a record's key (its text, or a pair's source, white space
normalized) is hashed, and the records with the smallest hashes are held out. Records with the same key are
on the same side in any order of the files.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

Kind = Literal["text", "pairs", "labeled", "conversations"]


class DataError(ValueError):
    """Something is wrong with the data; the message is one sentence with file and line where there is one."""


class Document(NamedTuple):
    """One text of a text corpus."""

    text: str
    where: str = ""


class Pair(NamedTuple):
    """One source text and its target text."""

    source: str
    target: str
    where: str = ""


class Labeled(NamedTuple):
    """One text and its class."""

    label: str
    text: str
    where: str = ""


class Conversation(NamedTuple):
    """One conversation: its messages, and the tools that they name, as an object of JSON."""

    text: str
    where: str = ""


R = TypeVar("R", Document, Pair, Labeled, Conversation)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Corpus(Generic[R]):
    """A data set, split."""

    name: str  # as the user gave it
    kind: Kind  # "text", "pairs", "labeled" or "conversations"
    source: str  # where it comes from
    license: str  # under which terms
    fingerprint: str  # hash of the contents and of the split
    train: Iterable[R]  # re-iterable, like the next two
    validation: Iterable[R]
    test: Iterable[R]  # may be empty
    held_out: float = 0.0  # the share that was to be held out for validation; 0 where that was not asked for
    files: tuple[str, ...] = ()  # whose records the store is to count, in their order; empty unless that was asked for
    n_bytes: int = 0  # size of the data, roughly; 0 where it is not known

    def parts(self) -> dict[str, Iterable[R]]:
        """Return the three collections by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


def normalized(text: str) -> str:
    """Return `text` with every run of white space as one space, and none at the ends."""
    return " ".join(text.split())


def record_key(record: Document | Pair | Labeled | Conversation) -> str:
    """Return what decides a record's side: its text, a pair's source, or what the user says first, normalized."""
    if isinstance(record, Conversation):
        messages = json.loads(record.text)["messages"]
        return normalized(next(str(m["content"]) for m in messages if m["role"] == "user"))
    return normalized(record.source if isinstance(record, Pair) else record.text)


def paragraphs(text: str) -> list[str]:
    """Return the non-blank parts of `text` between blank lines, each without white space at its ends."""
    return [p for p in (part.strip() for part in re.split(r"\n\s*\n", text)) if p]


def hash64(text: str) -> int:
    """Return a 64-bit hash of `text` that is the same on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def fingerprint(*parts: object) -> str:
    """Return a hexadecimal SHA-256 of the parts' `str`, in order, each length-prefixed."""
    digest = hashlib.sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def records_fingerprint(records: Iterable[Any]) -> str:
    """Return a fingerprint of the records' contents, in order."""
    return fingerprint(*(part for record in records for part in record[:-1]))  # the last field is `where`


@dataclass(frozen=True)
class Anew(Generic[T]):
    """What a function reads, anew at each iteration."""

    read: Callable[[], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        return self.read()


@dataclass
class Deduplicated:
    """Documents without the paragraphs whose hashes are in `seen`; a document left empty disappears."""

    documents: Iterable[Document]  # the documents to filter
    seen: frozenset[int]  # hashes of normalized paragraphs
    dropped: int = field(default=0, init=False)  # how many paragraphs the last complete iteration left out

    def __iter__(self) -> Iterator[Document]:
        dropped = 0
        for document in self.documents:
            parts = paragraphs(document.text)
            kept = [p for p in parts if hash64(normalized(p)) not in self.seen]
            dropped += len(parts) - len(kept)
            if len(kept) == len(parts):
                yield document
            elif kept:
                yield document._replace(text="\n\n".join(kept))
        self.dropped = dropped


def _thresholds(records: Iterable[R], key: Callable[[R], str], fractions: tuple[float, float], name: str) -> list[int]:
    """Return 0, the ends of test and of validation, and 2⁶⁴ on the line of hashes; see `hold_out`."""
    hashes = np.unique(np.fromiter((hash64(key(r)) for r in records), np.uint64))
    validation, test = (max(1, round(f * len(hashes))) if f > 0 else 0 for f in fractions)
    if validation + test >= len(hashes):
        raise DataError(
            f"{name} has {len(hashes)} distinct records, too few to hold some out for validation; "
            "give more data or a validation file"
        )
    ends = [int(hashes[n]) for n in (test, test + validation)]
    return [0, *ends, 1 << 64]


def hold_out(
    records: Iterable[R], fractions: tuple[float, float], *, name: str, key: Callable[[R], str] = record_key
) -> tuple[Iterable[R], Iterable[R], Iterable[R]]:
    """Split records by the hash of their keys into train, validation and test: lists if given a list, otherwise
    streams. Records with equal keys are on one side, and each positive fraction of distinct keys is at least one.
    Raises DataError if nothing would be left for training.
    """
    ends = _thresholds(records, key, fractions, name)

    def between(low: int, high: int) -> Iterable[R]:
        return Anew(lambda: (r for r in records if low <= hash64(key(r)) < high))

    test, validation, train = itertools.starmap(between, itertools.pairwise(ends))
    if isinstance(records, Sequence):
        return list(train), list(validation), list(test)
    return train, validation, test


def without_shared_paragraphs(
    train: Iterable[Document], validation: Iterable[Document], test: Iterable[Document]
) -> tuple[Iterable[Document], Iterable[Document], Iterable[Document]]:
    """Take the test's paragraphs out of validation, and those of both out of training (perhaps a stream)."""
    in_test = frozenset(hash64(normalized(p)) for d in test for p in paragraphs(d.text))
    distinct_validation = list(Deduplicated(validation, in_test))
    held_out = in_test | {hash64(normalized(p)) for d in distinct_validation for p in paragraphs(d.text)}
    return Deduplicated(train, held_out), distinct_validation, test


def joined_bytes(documents: Iterable[Document]) -> bytes:
    """Return the documents' text as UTF-8, joined by blank lines: the bytes that bits per byte are counted over."""
    return "\n\n".join(d.text for d in documents).encode()
