"""The user's files: text, JSON lines, tab-separated pairs and labeled text, streamed, so they may be of any size.

    corpus = read_corpus(["a.txt", "b.jsonl"], "text")
    corpus = read_corpus(["train.tsv"], "pairs", validation_paths=["valid.tsv"])

docs/training.md has a table of the formats by suffix, which may be in capitals. Files are UTF-8 (a byte order mark is
dropped); every line of JSON lines or TSV is a record. Records with an empty or null field, and conversations that do
not end with an answer, are left out and counted.

With validation files, these are held out, and training records that are identical to theirs are left out; if they are
more than `MOST_IDENTICAL` of the text, that is an error. Otherwise a share of the records is held out by a hash of
their contents, limited so that validation stays quick. A text file of more than this share of all the data is cut,
between paragraphs, where a stretch of it is held out: 1/200 of all the data, at least 1 KiB and at most 64 KiB. What
lies between two stretches is one document, of at most 4 MiB.

A file is read to check it, to hash its records, and again for each part that is iterated over. If the tokens are
cached, checking is the only reading.
"""

import codecs
import functools
import hashlib
import io
import itertools
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from training.data.conversations import conversation
from training.data.formats import check_table, described, inner_suffix, is_table, opened, readable, rows, text_files
from training.data.records import (
    TRAIN,
    VALIDATION,
    Corpus,
    DataError,
    Document,
    EmptyRecordError,
    Kind,
    Labeled,
    Listed,
    Pair,
    Part,
    contents_key,
    divided,
    fingerprint,
    hash64,
    printable,
    record_key,
)
from training.data.stretches import LARGEST_DOCUMENT, joined, pieces, sections
from training.disk import local_path, parse_json

BLOCK = 1 << 20
SECTIONS = 200  # of all the text, if a part of it is held out
SHORTEST_SECTION, LONGEST_SECTION = 1 << 10, 1 << 16  # characters
LARGEST_VALIDATION = 8 << 20  # bytes
MOST_IDENTICAL = 0.05  # of the training text
JSON = (".jsonl", ".ndjson", ".json")

RECORDS: dict[Kind, Any] = {"text": Document, "pairs": Pair, "labeled": Labeled}
FIELDS: dict[Kind, tuple[str, ...]] = {kind: record._fields[:-1] for kind, record in RECORDS.items()}  # but `where`
FIELDS["conversations"] = ("messages",)
EMPTY = "a field is empty or null"


def check_file(path: Path) -> tuple[int, str]:
    """Return the size of a file in bytes and the SHA-256 of it. Raises DataError, with the place, unless it is text."""
    digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
    size, line, blank = 0, 1, True
    with readable(path), opened(path) as file:
        for block in itertools.chain(iter(lambda: file.read(BLOCK), b""), [b""]):
            if not size and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise DataError(f"{path} begins like UTF-16; convert it to UTF-8")
            if (zero := block.find(0)) >= 0:
                line += block.count(b"\n", 0, zero)
                raise DataError(
                    f"{path}:{line}: zero byte at byte offset {size + zero}: a binary file, expected text in UTF-8"
                )
            pending = len(decoder.getstate()[0])  # bytes of a character that began in the previous block
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
                raise DataError(
                    f"{path}:{line}: not UTF-8 at byte offset {size - pending + error.start} "
                    f"(byte 0x{error.object[error.start]:02x}); convert the file to UTF-8"
                ) from None
            digest.update(block)
            blank = blank and not block.strip()
            size += len(block)
            line += block.count(b"\n")
    if blank:
        raise DataError(f"{path} has nothing but white space" if size else f"{path} is empty")
    return size, digest.hexdigest()


def _text(file: Any) -> TextIO:
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="\n")


class File(NamedTuple):
    """A file that has been checked."""

    path: Path
    name: str  # in messages
    size: int  # of the contents, in bytes
    digest: str  # of the contents

    @staticmethod
    def of(path: Path, kind: Kind, name: str | None = None) -> "File":
        """Check a file or a table. Raises DataError."""
        shown = printable(str(path)) if name is None else name
        return File(path, shown, *(check_table(path, FIELDS[kind]) if is_table(path) else check_file(path)))


@dataclass(frozen=True, eq=False)
class _Found:
    """The records of files, found in one reading of them."""

    hashes: UInt64[np.ndarray, " n"]  # of the records' keys
    sizes: Int64[np.ndarray, " n"]  # of the keys, in characters
    kept: Sequence[bytearray]  # for each file and each record in it, 0 if it is left out, otherwise 1
    left_out: Mapping[str, tuple[int, str]]  # reason → how many records are left out for it, and where the first is

    def notes(self) -> Iterator[str]:
        """Yield sentences about the records that are left out."""
        total = sum(map(len, self.kept))
        for reason, (n, first) in self.left_out.items():
            yield f"{n} of {total} records {'is' if n == 1 else 'are'} left out: {reason}, as in {first}"


@dataclass(frozen=True, eq=False)
class FileRecords:
    """The records of files: hashed in one reading, and read again at each iteration. Text files of more than `uncut`
    bytes are cut into stretches of `stretch` characters, each of them a record; `read` joins neighbors.
    """

    files: Sequence[File]
    kind: Kind
    key: Callable[[Any], str] = record_key
    stretch: int = LARGEST_DOCUMENT
    uncut: int = 0

    @functools.cached_property
    def found(self) -> _Found:
        """The records. Raises DataError for a file without one, or a record that is not of the kind."""
        hashes, sizes, kept, left_out = array("Q"), array("q"), list[bytearray](), dict[str, tuple[int, str]]()
        for file in self.files:
            kept.append(bytearray())
            record = self._reader(file)
            with readable(file.path):
                for number, item in self._items(file):
                    try:
                        key = self.key(record(number, item))
                    except EmptyRecordError as error:
                        n, first = left_out.get(str(error), (0, f"{file.name}:{number}"))
                        left_out[str(error)] = n + 1, first
                        kept[-1].append(0)
                        continue
                    kept[-1].append(1)
                    hashes.append(hash64(key))
                    sizes.append(len(key))
            if 1 not in kept[-1]:
                raise DataError(f"{file.name}: expected a record, got none: {', '.join(left_out)}")
        return _Found(np.array(hashes, np.uint64), np.array(sizes, np.int64), kept, left_out)

    @property
    def hashes(self) -> UInt64[np.ndarray, " n"]:
        """The hashes of the records' keys."""
        return self.found.hashes

    def share(self, chosen: Bool[np.ndarray, " n"]) -> float:
        """Return the share of the text that the chosen records have."""
        return float(self.found.sizes[chosen].sum() / self.found.sizes.sum())

    def __iter__(self) -> Iterator[Any]:
        return self.read(np.ones(len(self.hashes), bool))

    def read(self, chosen: Bool[np.ndarray, " n"]) -> Iterator[Any]:
        """Yield the chosen records."""
        first = 0
        for file, kept in zip(self.files, self.found.kept, strict=True):
            own = chosen[first : first + kept.count(1)].tobytes()
            first += len(own)
            if 1 not in own:
                continue
            with readable(file.path):
                items = itertools.compress(self._items(file), kept)
                chosen_items = joined(items, own) if self._is_prose(file.path) else itertools.compress(items, own)
                yield from itertools.starmap(self._reader(file), chosen_items)

    def _items(self, file: File) -> Iterator[tuple[int, Any]]:
        """Yield what a file has in each place, a text or a row, with the number of its line or row."""
        if is_table(file.path):
            yield from enumerate(rows(file.path, FIELDS[self.kind]), start=1)
            return
        with opened(file.path) as contents, _text(contents) as text:
            if self._is_prose(file.path):
                size = self.stretch if file.size > self.uncut else LARGEST_DOCUMENT
                yield from sections(pieces(text, min(size, BLOCK)), size)
            else:
                yield from enumerate(text, start=1)

    def _is_prose(self, path: Path) -> bool:
        return self.kind == "text" and not is_table(path) and inner_suffix(path) not in JSON

    def _reader(self, file: File) -> Callable[[int, Any], Any]:
        """Return the function that makes a record of a number and what the file has there."""
        if self._is_prose(file.path):
            return lambda number, item: Document(item, f"{file.name}:{number}")
        is_json = not is_table(file.path) and inner_suffix(file.path) in JSON
        read = self._of_json if is_json else self._of_row if is_table(file.path) else self._of_tsv

        def record(number: int, item: Any) -> Any:
            where = f"{file.name}:{number}"
            fields = read(item, where)
            return conversation(fields, where) if self.kind == "conversations" else self._checked(fields, where)

        return record

    def _checked(self, fields: Sequence[Any], where: str) -> Any:
        for name, value in zip(FIELDS[self.kind], fields, strict=True):
            if value is None or (isinstance(value, str) and not value.strip()):
                raise EmptyRecordError(EMPTY)
            if not isinstance(value, str):
                raise DataError(f"{where}: {name}: expected a text, got {str(value)[:60]!r}")
            try:
                value.encode()
            except UnicodeEncodeError:
                raise DataError(f"{where}: the {name} has a lone surrogate, which is not valid Unicode") from None
        return RECORDS[self.kind](*fields, where)

    def _of_row(self, row: Sequence[Any], where: str) -> Any:
        """Return the fields of a row of a table."""
        if self.kind != "conversations":
            return row
        messages = row[0] or ()  # in a table, every message has all fields, some None
        given = [{k: v for k, v in m.items() if v is not None} if isinstance(m, dict) else m for m in messages]
        return {"messages": given}

    def _of_json(self, line: str, where: str) -> Any:
        names = FIELDS[self.kind]
        try:
            value = parse_json(line) if line.strip() else None
        except ValueError as error:
            raise DataError(f"{where}: not a JSON object on one line ({error})") from None
        if value is None:
            raise EmptyRecordError(EMPTY)
        if self.kind == "conversations":
            return value
        if not isinstance(value, dict) or not all(isinstance(value.get(name, 0), str | None) for name in names):
            wanted = ", ".join(f'"{name}": "…"' for name in names)
            raise DataError(f"{where}: expected an object {{{wanted}}}, got {json.dumps(value)[:80]}")
        return [value[name] for name in names]

    def _of_tsv(self, line: str, where: str) -> list[str]:
        fields, (first, second) = line.rstrip("\r\n").split("\t"), FIELDS[self.kind]
        if len(fields) != 2 and not line.isspace():
            raise DataError(
                f"{where}: expected {first} TAB {second}, got {len(fields) - 1} TABs: {line[:60].rstrip()!r}"
            )
        return fields if len(fields) == 2 else ["", ""]


def _has_messages(path: Path) -> bool:
    """Return whether a file begins with a conversation, or a table has a column of messages."""
    if is_table(path):
        with readable(path):
            names, _ = described(path)
        return "messages" in names and "text" not in names
    if inner_suffix(path) not in JSON:
        return False
    with readable(path), opened(path) as contents, _text(contents) as file:
        try:
            value = next((value for line in file if line.strip() and (value := parse_json(line)) is not None), None)
        except ValueError:
            return False
    return isinstance(value, dict) and "messages" in value and "text" not in value


def _files(paths: Sequence[str | Path], kind: Kind, *, counted: bool = False) -> list[Path]:
    """Return the files, with every directory of text replaced by its files."""
    files: list[Path] = []
    for path in map(local_path, paths):
        inside = text_files(path) if kind == "text" else []
        if inside and counted:
            raise DataError(
                f"{path} is a directory of {len(inside)} files, but only files have weights; give each file its weight"
            )
        files += inside or [path]
    return files


def read_corpus(
    paths: Sequence[str | Path],
    kind: Kind,
    *,
    validation_paths: Sequence[str | Path] = (),
    validation_fraction: float = 0.05,
    counted: bool = False,
    names: Mapping[Path, str] | None = None,
) -> Corpus[Any]:
    """Check the user's files, and split their records into training and validation.

    `paths` are files, or directories of such files, of a kind in the table of docs/training.md; "text" also
    accepts conversations. The records of `validation_paths` are held out, and left out of training; without them, this
    share of the distinct records of `paths` is held out. The records of each file are `counted` if asked for. Messages
    call a file by its name in `names`, or by its path. Records are looked for, and checked, when a part is first read.
    The corpus has streams, and an empty test part. Raises DataError, naming file and line.
    """
    if not paths:
        raise DataError("no data files were given")
    if not 0 < validation_fraction < 1:
        raise DataError(f"validation_fraction: expected a number between 0 and 1, got {validation_fraction}")
    found, held = _files(paths, kind, counted=counted), _files(validation_paths, kind)
    if kind == "text":
        with_messages = [_has_messages(path) for path in found + held]
        kind = "conversations" if any(with_messages) else kind
        if any(with_messages) and not all(with_messages):
            path = (found + held)[with_messages.index(False)]
            raise DataError(
                f'{path}:1: expected {{"messages": […]}}, as in the other data, got none; give one kind of data'
            )
    files, held_files = ([File.of(path, kind, (names or {}).get(path)) for path in each] for each in (found, held))
    size = sum(file.size for file in files + held_files)
    fraction = 0.0 if held else min(validation_fraction, LARGEST_VALIDATION / size)
    name = files[0].name + f" and {len(files) - 1} more files" * (len(files) > 1)
    if held:
        records, held_records = (FileRecords(each, kind, contents_key) for each in (files, held_files))
        same = functools.cache(lambda: _identical(records, held_records))
        train, validation = Part(records, lambda: ~same()), held_records
    else:
        stretch = min(max(size // SECTIONS, SHORTEST_SECTION), LONGEST_SECTION)
        records = FileRecords(files, kind, stretch=stretch, uncut=int(fraction * size))
        part = functools.cache(lambda: divided(records.hashes, (fraction, 0.0), name=name))
        train, validation = Part(records, lambda: part() == TRAIN), Part(records, lambda: part() == VALIDATION)

    def notes() -> list[str]:
        found = [*records.found.notes()]
        if held:
            found += [f"held out: {note}" for note in held_records.found.notes()]
            n, share = int(np.count_nonzero(same())), f"{100 * records.share(same()):.2g} % of the text"
            are = "are left out, since they are" if n > 1 else "is left out, since it is"
            found += [f"{n} of {len(same())} training records ({share}) {are} identical to held-out data"] * (n > 0)
        return found

    contents = [(inner_suffix(file.path), file.digest) for file in files + held_files]
    return Corpus(
        name=name,
        kind=kind,
        fingerprint=fingerprint(kind, len(files), *contents, validation_fraction, *["counted"] * counted),
        held_out=fraction,
        files=tuple(file.name for file in files) if counted else (),
        n_bytes=size,
        train=train,
        validation=Listed(validation),
        test=[],
        notes=notes,
    )


def _identical(records: FileRecords, held_out: FileRecords) -> Bool[np.ndarray, " n"]:
    """Return which records are identical to held-out ones. Raises DataError if these are more than few."""
    same = np.isin(records.hashes, held_out.hashes)
    if (share := records.share(same)) > MOST_IDENTICAL:
        raise DataError(
            f"--validation-data: expected at most {100 * MOST_IDENTICAL:.0f} % of the training text in it, got "
            f"{100 * share:.1f} %: {np.count_nonzero(same)} of {len(same)} training records would be left out, "
            "since they are identical to held-out data; remove them from one of the two"
        )
    return same
