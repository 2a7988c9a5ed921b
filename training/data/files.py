"""The user's files: text, JSON lines, tab-separated pairs and labeled text, streamed, so they may be of any size.

    corpus = read_corpus(["a.txt", "b.jsonl"], "text")
    corpus = read_corpus(["train.tsv"], "pairs", validation_paths=["valid.tsv"])

| suffix | text | pairs | labeled |
|---|---|---|---|
| .jsonl, .ndjson, .json | {"text": …} or {"messages": […]} | {"source": …, "target": …} | {"label": …, "text": …} |
| .parquet, or a directory of `datasets` | column text or messages | columns source, target | columns label, text |
| a directory of text | every .txt and .md in it and below that is not hidden, by name | | |
| anything else | the file is one document | source TAB target | label TAB text |

A further suffix .gz, .bz2, .xz or .zst means that the file is compressed; suffixes may be in capitals. Files are UTF-8
(a byte order mark is dropped); every line of JSON lines or TSV is a record. A text file longer than 16 MiB is split
between paragraphs into documents. If a part of it is held out, the documents are smaller: 1/400 of all the text, at
least 1 KiB and at most 64 KiB. Unless validation files are given, a share of the records is held out, limited so that
validation stays quick.

A file is read to its end twice: first to check it, to hash it and its records, and to find where these begin, then to
tokenize the training data. What is held out, and the sample that a tokenizer is trained on, is read from where it lies
(in a compressed file or a table, by reading up to there). If the tokens are cached, checking is the only reading.
"""

import codecs
import functools
import hashlib
import io
import itertools
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from jaxtyping import Bool, UInt64

from training.data.conversations import conversation
from training.data.formats import (
    COMPRESSED,
    check_table,
    columns,
    inner_suffix,
    is_table,
    opened,
    readable,
    rows,
    table_files,
    text_files,
)
from training.data.records import (
    TRAIN,
    VALIDATION,
    Anew,
    Corpus,
    DataError,
    Deduplicated,
    Document,
    Kind,
    Labeled,
    Pair,
    Part,
    divided,
    fingerprint,
    hash64,
    record_key,
)
from training.disk import local_path, parse_json

BLOCK = 1 << 20
LONGEST = 4  # times the size of a section: a longer paragraph is split between lines
LARGEST_DOCUMENT = 1 << 24  # characters
SECTIONS = 400  # of all the text, if a part of it is held out
SHORTEST_SECTION, LONGEST_SECTION = 1 << 10, 1 << 16  # characters
LARGEST_VALIDATION = 8 << 20  # bytes
JSON = (".jsonl", ".ndjson", ".json")

RECORDS: dict[Kind, Any] = {"text": Document, "pairs": Pair, "labeled": Labeled}
FIELDS: dict[Kind, tuple[str, ...]] = {kind: record._fields[:-1] for kind, record in RECORDS.items()}  # but `where`
FIELDS["conversations"] = ("messages",)


def sections(lines: Iterable[str], size: int) -> Iterator[tuple[int, str]]:
    """Yield sections of a text, each with the number of its first line; joined, they are the text, unless it is blank.
    After `size` characters, a section ends before the next paragraph, or between two pieces of a line that was too long
    to be read at once; after four times as many, before the next line. White space at the end belongs to the last one.
    """
    section: list[str] = []
    first, characters, blank, ended = 1, 0, False, True
    for number, line in enumerate(lines, start=1):
        may_end = not ended or (blank and not line.isspace())
        if characters >= size * LONGEST or (characters >= size and may_end):
            text = "".join(section)
            if not text.isspace():
                yield first, text
                section, first, characters = [], number, 0
        section.append(line)
        characters += len(line)
        blank, ended = line.isspace(), line.endswith("\n")
    text = "".join(section)
    if text and not text.isspace():
        yield first, text


def check_file(path: Path) -> tuple[int, str]:
    """Return the size of a file in bytes and the SHA-256 of it. Raises DataError, with the place, unless it is text."""
    digest = hashlib.sha256()
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, line, blank = 0, 1, True
    with readable(path), opened(path) as file:
        first = file.read(BLOCK)
        if not first:
            raise DataError(f"{path} is empty")
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{path} begins like UTF-16; convert it to UTF-8")
        for block in itertools.chain([first], iter(lambda: file.read(BLOCK), b""), [b""]):
            if (zero := block.find(0)) >= 0:
                lines = block.count(b"\n", 0, zero)
                raise DataError(
                    f"{path}:{line + lines}: zero byte at byte offset {offset + zero}: a binary file, "
                    "expected text in UTF-8"
                )
            pending = len(decoder.getstate()[0])  # bytes of a character that began in the previous block
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                lines = error.object.count(b"\n", 0, error.start)
                raise DataError(
                    f"{path}:{line + lines}: not UTF-8 at byte offset {offset - pending + error.start} "
                    f"(byte 0x{error.object[error.start]:02x}); convert the file to UTF-8"
                ) from None
            digest.update(block)
            blank = blank and not block.strip()
            offset += len(block)
            line += block.count(b"\n")
    if blank:
        raise DataError(f"{path} has nothing but white space")
    return offset, digest.hexdigest()


class _Hashed(io.BufferedIOBase):
    """A file's contents as they are read, with their hash; a zero byte is an error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.size, self.head = 0, b""  # the number of bytes, and the first three

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def read1(self, size: int | None = -1) -> bytes:
        """Return the next bytes."""
        block = self._file.read(BLOCK if size is None or size < 0 else size)
        if 0 in block:
            raise DataError("expected text, got a zero byte")
        self._digest.update(block)
        self.size += len(block)
        self.head = self.head if len(self.head) > 2 else (self.head + block[:3])[:3]
        return block

    def hexdigest(self) -> str:
        """Return the SHA-256 of what was read."""
        return self._digest.hexdigest()


def _text(file: Any) -> TextIO:
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="\n")


def _lines(file: TextIO, longest: int) -> Iterator[str]:
    """Yield a file's lines with their newlines; lines over `longest` in pieces, split after a space if possible."""
    rest = ""
    while piece := rest + file.readline(longest - len(rest)):
        end = 0 if len(piece) < longest or piece.endswith("\n") else piece.rfind(" ") + 1
        yield piece[: end or None]
        rest = piece[end:] if end else ""


@dataclass(frozen=True, eq=False)
class _Found:
    """The records of a file, found in one reading of it."""

    path: Path
    size: int  # of the contents, in bytes
    digest: str  # of the contents
    hashes: "array[int]"  # of the records' keys
    starts: Sequence[int] = ()  # of the records, in bytes, and the end of the last; empty for a table
    lines: Sequence[int] = ()  # the records' first lines, from 1


@dataclass(frozen=True, eq=False)
class FileRecords:
    """The records of files: found, checked and hashed in one reading, and read again where they lie."""

    paths: Sequence[Path]
    kind: Kind
    section: int = LARGEST_DOCUMENT  # characters; longer text files are split between paragraphs

    @functools.cached_property
    def found(self) -> list[_Found]:
        """The records of each file."""
        return [self._find(path) for path in self.paths]

    @functools.cached_property
    def hashes(self) -> UInt64[np.ndarray, " n"]:
        """The hashes of the records' keys."""
        return np.concatenate([np.frombuffer(file.hashes, np.uint64) for file in self.found])

    def __iter__(self) -> Iterator[Any]:
        return self.read(np.ones(len(self.hashes), bool))

    def read(self, chosen: Bool[np.ndarray, " n"]) -> Iterator[Any]:
        """Yield the chosen records."""
        first = 0
        for file in self.found:
            own = chosen[first : first + len(file.hashes)].tobytes()
            first += len(file.hashes)
            with readable(file.path):
                yield from self._chosen(file, own) if 1 in own else ()

    def _chosen(self, file: _Found, chosen: bytes) -> Iterator[Any]:
        record, path = self._record_of(file.path), file.path
        if is_table(path):
            numbered = enumerate(rows(path, FIELDS[self.kind]), start=1)
            yield from (record(row, f"{path}:{number}") for number, row in itertools.compress(numbered, chosen))
            return
        places = zip(file.starts, itertools.islice(file.starts, 1, None), file.lines, strict=False)
        with opened(path) as contents:
            for start, end, line in itertools.compress(places, chosen):
                contents.seek(start)
                yield record(contents.read(end - start).decode(), f"{path}:{line}")

    def _find(self, path: Path) -> _Found:
        if self.kind == "conversations" and not _has_messages(path):
            raise DataError(
                f'{path}:1: expected {{"messages": […]}}, as in the other data, got none; give one kind of data'
            )
        return self._find_rows(path) if is_table(path) else self._find_texts(path)

    def _find_rows(self, path: Path) -> _Found:
        size, digest = check_table(path, FIELDS[self.kind])
        record, hashes = self._record_of(path), array("Q")
        with readable(path):
            for number, row in enumerate(rows(path, FIELDS[self.kind]), start=1):
                hashes.append(hash64(record_key(record(row, f"{path}:{number}"))))
        return _Found(path, size, digest, hashes)

    def _find_texts(self, path: Path) -> _Found:
        record, is_prose, end = self._record_of(path), self._is_prose(path), 0
        hashes, starts, lines = array("Q"), array("q"), array("q")
        with readable(path):
            try:
                with opened(path) as contents:
                    hashed = _Hashed(contents)
                    for line, text in self._texts(path, _text(hashed)):
                        end = end or len(codecs.BOM_UTF8) * (hashed.head == codecs.BOM_UTF8)
                        hashes.append(hash64(record_key(record(text, f"{path}:{line}"))))
                        starts.append(end)
                        if is_prose:  # elsewhere every line is a record
                            lines.append(line)
                        end += len(text) if text.isascii() else len(text.encode())
            except (DataError, UnicodeDecodeError):
                check_file(path)  # what is wrong with the whole file is said first
                raise
        if not hashes:
            check_file(path)
        starts.append(end)
        return _Found(path, hashed.size, hashed.hexdigest(), hashes, starts, lines or range(1, len(starts)))

    def _texts(self, path: Path, file: TextIO) -> Iterator[tuple[int, str]]:
        """Yield the text of each record of a file, with the number of its first line."""
        if self._is_prose(path):
            return sections(_lines(file, min(self.section, BLOCK)), self.section)
        return enumerate(file, start=1)

    def _is_prose(self, path: Path) -> bool:
        return self.kind == "text" and not is_table(path) and inner_suffix(path) not in JSON

    def _record_of(self, path: Path) -> Callable[[Any, str], Any]:
        """Return the function that makes a record of what a file has in one place, a text or a row, and the place."""
        if self._is_prose(path):
            return Document
        fields = self._of_row if is_table(path) else self._of_json if inner_suffix(path) in JSON else self._of_tsv
        if self.kind == "conversations":
            return lambda item, where: conversation(fields(item, where), where)
        return lambda item, where: self._record(fields(item, where), where)

    def _of_row(self, row: Sequence[Any], where: str) -> Any:
        """Return the fields of a row of a table."""
        if self.kind == "conversations":
            # in a table, every message has all fields, some None
            given = [{k: v for k, v in m.items() if v is not None} if isinstance(m, dict) else m for m in row[0] or ()]
            return {"messages": given}
        for name, value in zip(FIELDS[self.kind], row, strict=True):
            if not isinstance(value, str):
                raise DataError(f"{where}: {name}: expected a text, got {str(value)[:60]!r}")
        return row

    def _of_json(self, line: Any, where: str) -> Any:
        names = FIELDS[self.kind]
        try:
            value = parse_json(line)
        except ValueError as error:
            raise DataError(f"{where}: not a JSON object on one line ({error})") from None
        if self.kind == "conversations":
            return value
        if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in names):
            wanted = ", ".join(f'"{name}": "…"' for name in names)
            raise DataError(f"{where}: expected an object {{{wanted}}}, got {json.dumps(value)[:80]}")
        return [value[name] for name in names]

    def _of_tsv(self, line: Any, where: str) -> list[str]:
        fields, (first, second) = line.rstrip("\r\n").split("\t"), FIELDS[self.kind]
        if len(fields) != 2:
            raise DataError(
                f"{where}: expected {first} TAB {second}, got {len(fields) - 1} TABs: {line[:60].rstrip()!r}"
            )
        return fields

    def _record(self, fields: Sequence[str], where: str) -> Any:
        for name, value in zip(FIELDS[self.kind], fields, strict=True):
            if not value.strip():
                raise DataError(f"{where}: the {name} is empty")
            try:
                value.encode()
            except UnicodeEncodeError:
                raise DataError(f"{where}: the {name} has a lone surrogate, which is not valid Unicode") from None
        return RECORDS[self.kind](*fields, where)


def _has_messages(path: Path) -> bool:
    """Return whether a file begins with a conversation, or a table has a column of messages."""
    if is_table(path):
        names = columns(path)
        return "messages" in names and "text" not in names
    if inner_suffix(path) not in JSON:
        return False
    with readable(path), opened(path) as contents, _text(contents) as file:
        try:
            value = parse_json(file.readline())
        except ValueError:
            return False
    return isinstance(value, dict) and "messages" in value and "text" not in value


def _name(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files)) if len(files) < 4 else f"{files[0]} and {len(files) - 1} more files"


def _files(paths: Sequence[str | Path], kind: Kind, *, counted: bool = False) -> tuple[Path, ...]:
    """Return the files, with every directory of text replaced by its files."""
    files: list[Path] = []
    for path in map(local_path, paths):
        inside = text_files(path) if kind == "text" else []
        if inside and counted:
            raise DataError(
                f"{path} is a directory of {len(inside)} files, but only files have weights; give each file its weight"
            )
        files += inside or [path]
    return tuple(files)


def _section(files: Sequence[Path]) -> int:
    """Return the size of the documents that text is split into; compressed files are read as far as it needs."""
    size, enough = 0, SECTIONS * LONGEST_SECTION
    for path in files:
        with readable(path):
            if is_table(path) or path.suffix.lower() not in COMPRESSED:
                size += sum(file.stat().st_size for file in table_files(path))
                continue
            with opened(path) as contents:
                while size < enough and (block := contents.read(BLOCK)):
                    size += len(block)
    return min(max(size // SECTIONS, SHORTEST_SECTION), LONGEST_SECTION)


def read_corpus(
    paths: Sequence[str | Path],
    kind: Kind,
    *,
    validation_paths: Sequence[str | Path] = (),
    validation_fraction: float = 0.05,
    counted: bool = False,
    cached: bool = False,
) -> Corpus[Any]:
    """Check the user's files, and split their records into training and validation.

    `paths` are files, or directories of such files, of a kind in the table of the module's docstring; "text" also
    accepts conversations. The records of `validation_paths` are left out of training; without them, this share of the
    distinct records of `paths` is held out. The records of each file are `counted` if asked for. If their tokens are
    `cached`, records are only looked for, and checked, when a part is first read. The corpus has streams, and an empty
    test part. Raises DataError, naming file and line.
    """
    if not paths:
        raise DataError("no data files were given")
    if not 0 < validation_fraction < 1:
        raise DataError(f"validation_fraction: expected a number between 0 and 1, got {validation_fraction}")
    files, held_files = _files(paths, kind, counted=counted), _files(validation_paths, kind)
    if kind == "text" and any(map(_has_messages, files + held_files)):
        kind = "conversations"
    name = _name(files)
    records = FileRecords(files, kind, LARGEST_DOCUMENT if held_files or kind != "text" else _section(files))
    held_records = FileRecords(held_files, kind)
    if cached:
        names = FIELDS[kind]
        checked = [check_table(path, names) if is_table(path) else check_file(path) for path in files + held_files]
    else:
        checked = [(file.size, file.digest) for file in records.found + held_records.found]
    size = sum(n for n, _ in checked)
    fraction = 0.0 if held_files else min(validation_fraction, LARGEST_VALIDATION / size)
    part = functools.cache(lambda: divided(records.hashes, (fraction, 0.0), name=name))
    if held_files:
        train = Part(records, lambda: ~np.isin(records.hashes, held_records.hashes))
        held_out = functools.cache(lambda: list(held_records))
    else:
        train = Part(records, lambda: part() == TRAIN)
        held_out = functools.cache(lambda: list(Part(records, lambda: part() == VALIDATION)))
    validation = Anew(lambda: iter(held_out()))
    contents = [(inner_suffix(path), digest) for path, (_, digest) in zip(files + held_files, checked, strict=True)]
    return Corpus(
        name=name,
        kind=kind,
        source=name,
        license="the user's",
        fingerprint=fingerprint(kind, len(files), *contents, validation_fraction, *["counted"] * counted),
        held_out=fraction,
        files=tuple(map(str, files)) if counted else (),
        n_bytes=size,
        train=Deduplicated(train, validation) if kind == "text" else train,
        validation=validation,
        test=[],
    )
