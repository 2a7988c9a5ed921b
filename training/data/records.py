"""Records of a data set, the error of the data layer, and the split into training, validation and test.

A record has `where` (file and line, or the entry's name) for error messages. A `Corpus` holds three re-iterable
collections of one type. They may be lists or streams over files, which have no length.

    corpus = training.data.corpora.load_corpus("docs")            # a named data set
    corpus = training.data.files.read_corpus(["a.txt"], "text")     # the user's files
    splits = training.data.token_store.tokenize_text(corpus, tokenizer)   # on disk, memory-mapped

The split depends on the contents of the records alone: a record's key (its text, or a pair's source, with white space
normalized) is hashed, and the records with the smallest hashes are held out. Records with equal keys are in the same
part, whatever the order of the files.
"""

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

Kind = Literal["text", "pairs", "labeled", "conversations"]


class DataError(ValueError):
    """An error in the data; the message is one sentence, with file and line if they are known."""


class Document(NamedTuple):
    """A text of a text corpus."""

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


class Conversation(NamedTuple):
    """A conversation: its messages, and the tools that they name, as a JSON object."""

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
    license: str  # of the data
    fingerprint: str  # hash of the contents and of the split
    train: Iterable[R]  # re-iterable, like the next two
    validation: Iterable[R]
    test: Iterable[R]  # may be empty
    held_out: float = 0.0  # the share that should be held out for validation; 0 if no share was requested
    files: tuple[str, ...] = ()  # the files, in order, whose records the store should count; empty if none
    n_bytes: int = 0  # size of the data, roughly; 0 if unknown

    def parts(self) -> dict[str, Iterable[R]]:
        """Return the three collections by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


def normalized(text: str) -> str:
    """Return `text` with every run of white space replaced by one space, and stripped."""
    return " ".join(text.split())


def record_key(record: Document | Pair | Labeled | Conversation) -> str:
    """Return the key that decides a record's part, normalized: its text, a pair's source, or the first user message."""
    if isinstance(record, Conversation):
        messages = json.loads(record.text)["messages"]
        return normalized(next(str(m["content"]) for m in messages if m["role"] == "user"))
    return normalized(record.source if isinstance(record, Pair) else record.text)


def paragraphs(text: str) -> list[str]:
    """Return the non-blank parts of `text` between blank lines, stripped."""
    return [p for p in (part.strip() for part in re.split(r"\n\s*\n", text)) if p]


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
class Anew(Generic[T]):
    """An iterable that calls `read` for every iteration."""

    read: Callable[[], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        return self.read()


@dataclass
class Deduplicated:
    """Documents without the paragraphs whose hashes are in `seen`; documents left empty are dropped."""

    documents: Iterable[Document]  # the documents to filter
    seen: frozenset[int]  # hashes of normalized paragraphs
    dropped: int = field(default=0, init=False)  # number of paragraphs that the last complete iteration left out

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


def hold_out(
    records: Iterable[R], fractions: tuple[float, float], *, name: str, key: Callable[[R], str] = record_key
) -> tuple[Iterable[R], Iterable[R], Iterable[R]]:
    """Split records by the hash of their keys into train, validation and test, streams unless given a list. Equal keys
    are in one part, a positive fraction holds out at least one. Raises DataError if too few are left.
    """
    hashes = np.fromiter((hash64(key(r)) for r in records), np.uint64)
    distinct = np.unique(hashes)
    n_validation, n_test = (max(1, round(f * len(distinct))) if f > 0 else 0 for f in fractions)
    if n_validation + n_test >= len(distinct):
        raise DataError(
            f"{name} has {len(distinct)} distinct records, too few to hold some out for validation; "
            "give more data or a validation file"
        )
    part = np.searchsorted(distinct[[n_test, n_test + n_validation]], hashes, side="right").astype(np.uint8)
    test, validation, train = (Anew(functools.partial(itertools.compress, records, part == i)) for i in range(3))
    if isinstance(records, Sequence):
        return list(train), list(validation), list(test)
    return train, validation, test


def without_shared_paragraphs(
    train: Iterable[Document], validation: Iterable[Document], test: Iterable[Document]
) -> tuple[Iterable[Document], Iterable[Document], Iterable[Document]]:
    """Remove the paragraphs of test from validation, and those of both from training, which may be a stream."""
    in_test = frozenset(hash64(normalized(p)) for d in test for p in paragraphs(d.text))
    distinct_validation = list(Deduplicated(validation, in_test))
    held_out = in_test | {hash64(normalized(p)) for d in distinct_validation for p in paragraphs(d.text)}
    return Deduplicated(train, held_out), distinct_validation, test


def joined_bytes(documents: Iterable[Document]) -> bytes:
    """Return the documents' text as UTF-8, joined by blank lines: the bytes that bits per byte refer to."""
    return "\n\n".join(d.text for d in documents).encode()
