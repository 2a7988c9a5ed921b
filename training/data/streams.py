"""Data sets of the Hugging Face hub, streamed by the library datasets into a file, which is then read like any other.

    hf:NAME, hf:NAME:SPLIT, hf:NAME:SPLIT:COLUMN        such as hf:roneneldan/TinyStories:train[:10000]

NAME is the name on the hub, followed by the configuration if there are several (owner/name/configuration) and perhaps
by @ and a revision (owner/name@main), or it is a directory. A split such as train[:10000] reads the first 10000 rows
and fetches nothing after them. The file is cached, so a resumed run has the same rows, without the network.
"""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from training.data.hub_names import HUB, pinned, why_not
from training.data.mixtures import weighted
from training.data.records import DataError, Kind, fingerprint
from training.disk import reason, remove_unfinished, write_atomically
from training.extras import install

COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "text": (("text",), ("messages",)),
    "pairs": (("source", "target"),),
    "labeled": (("label", "text"),),
}
"""The columns of each kind of data; if there are alternatives, the first that the data set has."""


class Stream(NamedTuple):
    """The rows of a data set to read."""

    name: str  # of the data set, or its directory
    configuration: str | None  # of the data set; None: it has only one
    split: str  # name of the split
    take: int | None  # number of rows; None: all
    column: str | None  # of the text; None: text or messages
    revision: str | None = None  # on the hub; None: the newest


def parse_stream(written: str) -> Stream:
    """Read hf:NAME[@REVISION][:SPLIT[:COLUMN]], or raise DataError."""
    found = re.fullmatch(r"hf:([^:]+)(?::(\w[\w.-]*)(?:\[:([1-9]\d{0,11})\])?(?::([^:]+))?)?", written)
    if found is None:
        raise DataError(f"--data: expected hf:NAME, hf:NAME:SPLIT or hf:NAME:SPLIT:COLUMN, got {written!r}")
    name, split, take, column = found.groups()
    revision = None
    if not Path(name).exists():
        name, at, revision = name.partition("@")
        if at and not re.fullmatch(r"\w[\w./-]*", revision):
            raise DataError(f"--data: expected a revision behind @, as in hf:NAME@main, got {written!r}")
    parts = name.split("/")
    configuration = None
    if len(parts) == 3 and not Path(name).exists():
        name, configuration = "/".join(parts[:2]), parts[2]
    return Stream(name, configuration, split or "train", int(take) if take else None, column, revision or None)


def at_commit(written: str) -> str:
    """Return hf:NAME at the commit that its revision is now; other names as they are. Raises DataError."""
    if not written.startswith(HUB) or Path(_stream_of(written).name).exists():
        return written
    return pinned(written, _commit)


def _stream_of(written: str) -> Stream:
    return parse_stream(weighted(written).path)


def _commit(written: str) -> str:
    stream = _stream_of(written)
    try:
        hub = importlib.import_module("huggingface_hub").HfApi()
        return hub.dataset_info(stream.name, revision=stream.revision).sha
    except ModuleNotFoundError:
        raise DataError(f"{written}: datasets is not installed: {install('data')}") from None
    except Exception as error:  # anything that the hub or the network raises
        raise DataError(f"{written}: {why_not(error)}") from None


def streamed(written: str, kind: Kind, cache_dir: Path) -> Path:
    """Return the file with a data set's rows, which is written unless cached. Raises DataError if it cannot be."""
    stream = parse_stream(written)
    at = () if stream.revision is None else (stream.revision,)
    file = cache_dir / "streams" / f"{fingerprint(kind, *stream[:-1], *at)[:32]}.jsonl"
    if file.is_file():
        remove_unfinished(file.parent)
        return file

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8") as lines:
            lines.writelines(_lines(written, stream, kind))

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, write, again=False)
    except OSError as error:
        raise DataError(f"{written}: cannot be written to {file.parent}: {reason(error)}") from None
    return file


def _lines(written: str, stream: Stream, kind: Kind) -> Iterator[str]:
    """Yield the rows as lines of JSON."""
    try:
        options = {} if stream.revision is None else {"revision": stream.revision}
        rows = importlib.import_module("datasets").load_dataset(
            stream.name, stream.configuration, split=stream.split, streaming=True, **options
        )
        rows = rows if stream.take is None else rows.take(stream.take)
        features, is_empty = rows.features or {}, True
        named = {name: feature.int2str for name, feature in features.items() if hasattr(feature, "int2str")}
        for row in rows:
            is_empty = False
            names = _columns(written, stream, kind, row)
            values = {ours: named[name](row[name]) if name in named else row[name] for ours, name in names.items()}
            yield json.dumps(values, ensure_ascii=False) + "\n"
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise DataError(f"{written}: datasets is not installed: {install('data')}") from None
    except (DataError, KeyboardInterrupt):
        raise
    except Exception as error:  # the library raises many types of errors
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{written}: cannot be read: {first}") from None
    if is_empty:
        raise DataError(f"{written}: expected rows, got none; name another split")


def _columns(written: str, stream: Stream, kind: Kind, row: Any) -> dict[str, str]:
    """Return the columns of a row to read, by the names of the fields that they become."""
    if stream.column is not None and kind != "text":
        raise DataError(f"{written}: expected no column for {kind}, got {stream.column!r}; leave it out")
    for names in COLUMNS[kind] if stream.column is None else ((stream.column,),):
        if all(name in row for name in names):
            if stream.column is None:
                return {name: name for name in names}
            return {"text" if isinstance(row[stream.column], str) else "messages": stream.column}
    wanted = " or ".join(" and ".join(names) for names in COLUMNS[kind]) if stream.column is None else stream.column
    raise DataError(f"{written}: expected a column {wanted}, got {', '.join(row)}; name it, as in hf:NAME:SPLIT:COLUMN")
