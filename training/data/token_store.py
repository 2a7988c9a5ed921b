"""Tokenized data on disk, memory-mapped: text of any size is tokenized once, and then read in any order.

Every sequence is stored as the paper writes a text, [bos, tokens…, eos]. A store is a folder in the cache directory,
named by the fingerprints of data and tokenizer, and is renamed into place when it is complete, so a killed run leaves
no partial store. All data are read here, before the first step: errors in them are reported with file and line.
"""

import array
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt

from training.data.conversations import Answers
from training.data.overlap import Overlap
from training.data.records import Corpus, DataError, Document, Kind, Labeled, fingerprint
from training.data.tokenizers import Tokenizer
from training.disk import parse_json, read_text, reason, remove_unfinished, write_atomically

FORMAT = "token store 3"
BATCH_CHARACTERS = 1 << 22
SHOWN = 8  # classes that an error names
TOKENS = "tokens.bin"
ANSWERS = "answers.bin"  # mask of the tokens of conversations that are answers: one byte per token


COLUMNS: dict[Kind, tuple[str, ...]] = {"pairs": ("source", "target")}
COLUMNS |= dict.fromkeys(("text", "labeled", "conversations"), ("text",))
"""The texts of a record that become sequences, by kind."""


def default_cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/formal-algorithms`, or `~/.cache/formal-algorithms` if that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "formal-algorithms"


@dataclass(frozen=True)
class TokenStore:
    """Sequences of tokens, concatenated in one array."""

    tokens: UInt[np.ndarray, " n_tokens"]  # uint16 or uint32, usually memory-mapped
    offsets: Int[np.ndarray, " n+1"]  # sequence i is tokens[offsets[i] : offsets[i + 1]]
    N_V: int  # vocabulary size
    n_bytes: int  # UTF-8 bytes of the texts, joined by blank lines (2 bytes each, to match the eos that is predicted)
    fingerprint: str  # of the data, the tokenizer and the part
    part: str = "train"  # "train", "validation" or "test"
    overlap: float | None = None  # share of held-out windows in the training texts, see `training.data.overlap`
    exact: bool = True  # whether the tokens decode to the exact texts; not checked for training data
    special: Sequence[int | None] | None = None  # mask, bos and eos, each None if there is none; None: the paper's
    counts: Sequence[int] = ()  # the number of sequences of each file, if they were counted
    notes: Sequence[str] = ()  # sentences about records that are left out
    answers: Bool[np.ndarray, " n_tokens"] | None = None  # which tokens are to be predicted; None: all
    rendered: str = ""  # hash of conversations as the chat template wrote them, which may depend on the date

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> UInt[np.ndarray, " length"]:
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        """The number of tokens of each sequence, bos and eos included: [n]."""
        return np.diff(self.offsets)

    @property
    def n_tokens(self) -> int:
        """The number of tokens of all sequences, bos and eos included."""
        return len(self.tokens)

    def special_token(self, name: str) -> int:
        """Return the ID of "mask", "bos" or "eos". Raises DataError if the tokenizer's model has no such token."""
        number = ("mask", "bos", "eos").index(name)
        token = self.N_V - 3 + number if self.special is None else self.special[number]
        if token is None:
            raise DataError(f"the model that the tokenizer came with has no {name} token, which this needs")
        return token


@dataclass(frozen=True)
class PairStore:
    """Two stores whose i-th sequences belong together."""

    source: TokenStore
    target: TokenStore

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class LabeledStore:
    """A store with the class of each sequence."""

    text: TokenStore  # the sequences
    labels: Int32[np.ndarray, " n"]  # indices into `names`
    names: tuple[str, ...]  # the classes of the training data, sorted

    def __len__(self) -> int:
        return len(self.text)


class Splits(NamedTuple):
    """The stores of a corpus: each a `TokenStore`, `PairStore` or `LabeledStore`."""

    train: Any
    validation: Any
    test: Any


def token_stores(store: TokenStore | PairStore | LabeledStore) -> list[TokenStore]:
    """Return the stores of tokens that a store consists of: source and target of pairs, otherwise one."""
    if isinstance(store, PairStore):
        return [store.source, store.target]
    return [store.text if isinstance(store, LabeledStore) else store]


Progress = Callable[[int], None]  # receives the number of bytes of text that were just tokenized


def token_dtype(N_V: int) -> type[np.unsignedinteger]:
    """Return the smallest dtype for tokens below N_V: uint16 or uint32."""
    return np.uint16 if N_V <= 1 << 16 else np.uint32


class _Column:
    """Writes the store of one text of each record: its tokens, framed with bos and eos, or a rendered conversation."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, kind: Kind, *, verify: bool, is_source: bool) -> None:
        folder.mkdir(parents=True)
        (folder / TOKENS).touch()
        self._folder, self._tokenizer, self._is_source = folder, tokenizer, is_source
        self._answers = Answers(tokenizer) if kind == "conversations" else None
        self._exact, self._verify = self._answers is None, verify
        self._lengths, self._bytes, self._rendered = array.array("q"), 0, hashlib.sha256()

    def append(self, texts: Sequence[str], where: Sequence[str]) -> None:
        """Write the sequences of texts; error messages name their place in `where`."""
        dtype = token_dtype(self._tokenizer.N_V)
        with (self._folder / TOKENS).open("ab") as file:
            for tokens in self._conversations(texts, where) if self._answers else self._framed(texts, where):
                file.write(np.array(tokens, dtype).tobytes())
                self._lengths.append(len(tokens))
        self._bytes += sum(len(text.encode()) for text in texts)

    def _framed(self, texts: Sequence[str], where: Sequence[str]) -> Iterator[list[int]]:
        tokenizer = self._tokenizer
        for text, ids in zip(texts, _encode(tokenizer, texts, where), strict=True):
            if self._verify and self._exact:
                self._exact = tokenizer.decode(ids) == text
            yield tokenizer.framed(ids) if self._is_source else [tokenizer.bos_token, *ids, tokenizer.eos_token]

    def _conversations(self, texts: Sequence[str], where: Sequence[str]) -> Iterator[list[int]]:
        assert self._answers
        with (self._folder / ANSWERS).open("ab") as file:
            for text, place in zip(texts, where, strict=True):
                tokens, answered = self._answers.encode(Document(text, place))
                file.write(answered.tobytes())
                self._rendered.update(np.array(tokens, np.int64).tobytes() + answered.tobytes())
                yield tokens

    def describe(self, **facts: Any) -> None:
        """Write the offsets, and meta.json with further facts."""
        np.save(self._folder / "offsets.npy", np.append(0, np.cumsum(self._lengths, dtype=np.int64)))
        special = self._tokenizer.special
        meta = {
            "N_V": self._tokenizer.N_V,
            "n_bytes": self._bytes + 2 * max(0, len(self._lengths) - 1),
            "exact": self._exact,
            "special": special and [special.mask, special.bos, special.eos],
            "rendered": self._rendered.hexdigest() if self._answers else "",
            **facts,
        }
        (self._folder / "meta.json").write_text(json.dumps(meta))


def _encode(tokenizer: Tokenizer, texts: Sequence[str], where: Sequence[str]) -> list[list[int]]:
    """Tokenize a batch; an error names the text's place."""
    try:
        return tokenizer.encode_batch(texts)
    except DataError:
        for text, place in zip(texts, where, strict=True):
            try:
                tokenizer.encode(text)
            except DataError as error:
                raise DataError(f"{place}: {error}" if place else str(error)) from None
        raise


def _batches(records: Iterable[Any]) -> Iterator[list[Any]]:
    """Group records into batches of a few megabytes of text, so that a tokenizer can work in parallel."""
    batch, size = [], 0
    for record in records:
        batch.append(record)
        size += sum(map(len, record))
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write(directory: Path, corpus: Corpus[Any], tokenizer: Tokenizer, progress: Progress) -> None:
    """Write the stores of a corpus: in each part's folder, one for each text of a record, in the folders 0, 1, …"""
    columns, overlaps = COLUMNS[corpus.kind], {}
    for part, records in ("validation", corpus.validation), ("test", corpus.test):
        overlaps[part] = Overlap(getattr(record, column) for record in records for column in columns)
    if corpus.kind == "labeled":
        _write_labels(directory, corpus)
    for part, records in corpus.parts().items():
        is_train, counts = part == "train", dict.fromkeys(corpus.files, 0)
        options = {"verify": not is_train, "kind": corpus.kind}
        writers = [
            _Column(directory / part / str(i), tokenizer, **options, is_source=column == "source")
            for i, column in enumerate(columns)
        ]
        for batch in _batches(records):
            where = [record.where for record in batch]
            for writer, column in zip(writers, columns, strict=True):
                texts = [getattr(record, column) for record in batch]
                writer.append(texts, where)
                for overlap in overlaps.values() if is_train else ():
                    overlap.look_in("\0".join(texts))
                progress(sum(len(text.encode()) for text in texts))
            for place in where if is_train and counts else ():
                counts[place.rpartition(":")[0]] += 1
        share = None if is_train else overlaps[part].share
        notes = [*corpus.notes()] if is_train else []
        for writer in writers:
            writer.describe(counts=[*counts.values()] if is_train else [], overlap=share, notes=notes)


def _mapped(file: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """Return a file as an array that is mapped into memory, which an empty one cannot be."""
    return np.asarray(np.memmap(file, dtype, "r")) if file.stat().st_size else np.empty(0, dtype)


def _open(directory: Path, identity: str, part: str) -> TokenStore:
    """Open a store, and check its sizes against meta.json."""
    try:
        meta = parse_json(read_text(directory / "meta.json"))
        offsets = np.load(directory / "offsets.npy")
        dtype = np.dtype(token_dtype(meta["N_V"]))
        if (size := (directory / TOKENS).stat().st_size) != offsets[-1] * dtype.itemsize:
            raise ValueError(f"{size} bytes of tokens, expected {offsets[-1] * dtype.itemsize}")
        tokens = _mapped(directory / TOKENS, dtype)
        answers = _mapped(directory / ANSWERS, np.dtype(bool)) if (directory / ANSWERS).is_file() else None
        if answers is not None and len(answers) != len(tokens):
            raise ValueError(f"{len(answers)} bytes of answers, expected {len(tokens)}")
        kept = {
            name: meta[name]
            for name in ("N_V", "n_bytes", "exact", "special", "counts", "overlap", "notes", "rendered")
        }
    except (OSError, ValueError, KeyError, IndexError, EOFError) as error:
        raise DataError(f"the token cache {directory} is damaged ({error}); delete that folder") from None
    return TokenStore(tokens, offsets, **kept, fingerprint=fingerprint(identity, part), part=part, answers=answers)


def _cached(directory: Path, write: Callable[[Path], None]) -> None:
    """Unless it exists, `write` a new folder and rename it to `directory`; others that want the same wait."""
    try:
        if directory.is_dir():
            remove_unfinished(directory.parent)
            return
        directory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(directory, write, again=False)
    except OSError as error:
        raise DataError(
            f"cannot write the token cache {directory}: {reason(error)}; name another cache directory"
        ) from None


def tokenize(
    corpus: Corpus[Any], tokenizer: Tokenizer, *, cache_dir: Path | None = None, progress: Progress = lambda n: None
) -> Splits:
    """Tokenize a corpus into memory-mapped stores of train, validation and test, unless they are cached: a `PairStore`
    of pairs, a `LabeledStore` of labeled texts, otherwise a `TokenStore`. Raises DataError, for labels also if there is
    one class, or a held-out label is not in training.
    """
    identity = fingerprint(FORMAT, corpus.kind, corpus.fingerprint, tokenizer.fingerprint())
    directory = (cache_dir or default_cache_dir()) / "tokens" / identity[:32]
    _cached(directory, lambda path: _write(path, corpus, tokenizer, progress))
    found = {}
    for part in corpus.parts():
        stores = [_open(directory / part / str(i), identity, part) for i in range(len(COLUMNS[corpus.kind]))]
        if part != "test" and not len(stores[0]):
            raise DataError(f"{corpus.name} has no records for {part}")
        if corpus.kind == "labeled":
            names = tuple(parse_json(read_text(directory / "names.json")))
            found[part] = LabeledStore(stores[0], np.load(directory / f"{part}.npy"), names)
        else:
            found[part] = PairStore(*stores) if corpus.kind == "pairs" else stores[0]
    return Splits(**found)


def _write_labels(directory: Path, corpus: Corpus[Labeled]) -> None:
    names = sorted({record.label for record in corpus.train})
    if len(names) < 2:
        raise DataError(f"{corpus.name} has {len(names)} label in its training data, expected 2 or more")
    directory.mkdir()
    for part, records in corpus.parts().items():
        np.save(directory / f"{part}.npy", _labels(records, names, drawn=bool(corpus.held_out)))
    (directory / "names.json").write_text(json.dumps(names))


def _labels(records: Iterable[Labeled], names: Sequence[str], *, drawn: bool) -> np.ndarray:
    """Return the classes of records by number; what is held out is `drawn`, or chosen by the user."""
    index = {name: i for i, name in enumerate(names)}
    labels = array.array("i")
    for record in records:
        if record.label not in index:
            drawn_all = "all its examples are held out; give more, or choose what is held out with --validation-data"
            advice = drawn_all if drawn else "give examples of it to train on, or leave it out"
            shown = ", ".join(map(repr, names[:SHOWN])) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
            raise DataError(
                f"{record.where}: label {record.label!r} does not occur in the training data ({advice}), "
                f"whose labels are {shown}"
            )
        labels.append(index[record.label])
    return np.array(labels, np.int32)
