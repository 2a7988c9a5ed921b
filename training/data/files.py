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
validation stays quick. Every file is first read to its end, and every line is checked when the data are tokenized,
before training starts.
"""

import codecs
import functools
import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from training.data.conversations import conversation
from training.data.formats import check_table, columns, inner_suffix, is_table, opened, readable, rows, text_files
from training.data.records import (
    Anew,
    Corpus,
    DataError,
    Document,
    Kind,
    Labeled,
    Pair,
    fingerprint,
    hash64,
    hold_out,
    record_key,
    without_shared_paragraphs,
)
from training.disk import local_path, parse_json

BLOCK = 1 << 20
LONGEST = 4  # times the size of a section: a longer paragraph is split between lines
LARGEST_DOCUMENT = 1 << 24  # characters
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


def _text(path: Path) -> TextIO:
    return io.TextIOWrapper(opened(path), encoding="utf-8-sig", newline="\n")


def _lines(path: Path) -> Iterator[str]:
    with _text(path) as file:
        yield from file


def _read_lines(path: Path, longest: int) -> Iterator[str]:
    """Yield a file's lines with their newlines; lines over `longest` in pieces, split after a space if possible."""
    rest = ""
    with _text(path) as file:
        while piece := rest + file.readline(longest - len(rest)):
            end = 0 if len(piece) < longest or piece.endswith("\n") else piece.rfind(" ") + 1
            yield piece[: end or None]
            rest = piece[end:] if end else ""


@dataclass(frozen=True)
class FileRecords:
    """The records of files, read again at each iteration."""

    paths: tuple[Path, ...]  # the files, in order
    kind: Kind  # of the records
    section: int = LARGEST_DOCUMENT  # characters; longer text files are split between paragraphs

    def __iter__(self) -> Iterator[Any]:
        for path in self.paths:
            with readable(path):
                yield from self._of(path)

    def _of(self, path: Path) -> Iterator[Any]:
        if self.kind == "conversations" and not _has_messages(path):
            raise DataError(
                f'{path}:1: expected {{"messages": […]}}, as in the other data, got none; give one kind of data'
            )
        if is_table(path):
            items, fields_of = rows(path, FIELDS[self.kind]), self._of_row
        elif self.kind == "text" and inner_suffix(path) not in JSON:
            for line, text in sections(_read_lines(path, min(self.section, BLOCK)), self.section):
                yield Document(text, f"{path}:{line}")
            return
        else:
            items, fields_of = _lines(path), self._of_json if inner_suffix(path) in JSON else self._of_tsv
        for number, item in enumerate(items, start=1):
            where = f"{path}:{number}"
            fields = fields_of(item, where)
            yield conversation(fields, where) if self.kind == "conversations" else self._record(fields, where)

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


def _split(
    files: tuple[Path, ...], held_files: tuple[Path, ...], kind: Kind, fraction: float, section: int
) -> tuple[Iterable[Any], Iterable[Any]]:
    """Return the records of files for training and for validation."""
    if held_files:
        validation = list(FileRecords(held_files, kind))
        held_out = frozenset(hash64(record_key(r)) for r in validation)
        records = FileRecords(files, kind)
        train: Iterable[Any] = Anew(lambda: (r for r in records if hash64(record_key(r)) not in held_out))
    else:
        train, validation, _ = hold_out(FileRecords(files, kind, section), (fraction, 0.0), name=_name(files))
    if kind == "text":
        train, validation, _ = without_shared_paragraphs(train, validation, [])
    return train, validation


@dataclass(frozen=True)
class _Part:
    """One part of a split, which is computed when a part is first read."""

    split: Callable[[], tuple[Iterable[Any], Iterable[Any]]]
    index: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.split()[self.index])

    @property
    def dropped(self) -> int:
        """Number of paragraphs that the last iteration left out."""
        return getattr(self.split()[self.index], "dropped", 0)


def _has_messages(path: Path) -> bool:
    """Return whether a file begins with a conversation, or a table has a column of messages."""
    if is_table(path):
        names = columns(path)
        return "messages" in names and "text" not in names
    if inner_suffix(path) not in JSON:
        return False
    with readable(path), _text(path) as file:
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


def read_corpus(
    paths: Sequence[str | Path],
    kind: Kind,
    *,
    validation_paths: Sequence[str | Path] = (),
    validation_fraction: float = 0.05,
    counted: bool = False,
) -> Corpus[Any]:
    """Check that the user's files are text, and split their records into training and validation.

    `paths` are files, or directories of such files, of a kind in the table of the module's docstring; "text" also
    accepts conversations. The records of `validation_paths` are left out of training; without them, this share of the
    distinct records of `paths` is held out. The records of each file are `counted` if asked for. The corpus has
    streams, and an empty test part; iterating over a part checks every line, and raises DataError, naming file and
    line, if it is malformed.
    """
    if not paths:
        raise DataError("no data files were given")
    if not 0 < validation_fraction < 1:
        raise DataError(f"validation_fraction: expected a number between 0 and 1, got {validation_fraction}")
    files, held_files = _files(paths, kind, counted=counted), _files(validation_paths, kind)
    if kind == "text" and any(map(_has_messages, files + held_files)):
        kind = "conversations"
    names = FIELDS[kind]
    checked = [check_table(path, names) if is_table(path) else check_file(path) for path in files + held_files]
    size = sum(n for n, _ in checked)
    fraction = 0.0 if held_files else min(validation_fraction, LARGEST_VALIDATION / size)
    section = min(max(size // 400, 1 << 10), 1 << 16)
    split = functools.cache(functools.partial(_split, files, held_files, kind, fraction, section))
    contents = [(inner_suffix(path), digest) for path, (_, digest) in zip(files + held_files, checked, strict=True)]
    return Corpus(
        name=_name(files),
        kind=kind,
        source=_name(files),
        license="the user's",
        fingerprint=fingerprint(kind, len(files), *contents, validation_fraction, *["counted"] * counted),
        held_out=fraction,
        files=tuple(map(str, files)) if counted else (),
        n_bytes=size,
        train=_Part(split, 0),
        validation=_Part(split, 1),
        test=[],
    )
