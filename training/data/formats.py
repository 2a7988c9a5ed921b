"""Formats of files: plain and compressed text, and tables, which need the libraries of the extra `data`."""

import bz2
import contextlib
import gzip
import hashlib
import importlib
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from training.data.records import DataError
from training.disk import require_file
from training.extras import install

ROWS = 1000  # read at once
TEXT = (".txt", ".md")  # suffixes of the text files in a directory


def _zstd(path: Path) -> Any:
    return _needed("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd", path).open(path)


COMPRESSED: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstd}
"""Functions that open compressed files, by suffix."""
DAMAGED: tuple[type[Exception], ...] = (EOFError, zlib.error, lzma.LZMAError, OSError, UnicodeDecodeError)
DAMAGED_OF_OTHERS = ("ZstdError", "ArrowInvalid", "ArrowException")  # of libraries that may not be installed


def _needed(module: str, path: Path) -> Any:
    """Return a library that reading a path needs; check the path first, so that a wrong one is reported as such."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise DataError(f"reading {path} needs {module}: {install('data')}") from None


def inner_suffix(path: Path) -> str:
    """Return the suffix that names a file's format, in lower case, without that of its compression."""
    name = Path(path.name.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSED else name.suffix


def opened(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed. Raises DataError if a library is missing, OSError if it cannot be."""
    return COMPRESSED.get(path.suffix.lower(), lambda plain: plain.open("rb"))(require_file(path))


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn every error of reading a file into a DataError of one sentence."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.strerror is not None:  # else it is of a decompressor, or of Arrow
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        if not isinstance(error, DAMAGED) and type(error).__name__ not in DAMAGED_OF_OTHERS:
            raise
        first_line = str(error).partition("\n")[0]
        raise DataError(f"{path} is damaged: {first_line}") from None


def is_table(path: Path) -> bool:
    """Return whether a path is a Parquet file, or a directory saved by the library datasets."""
    return path.suffix.lower() == ".parquet" or path.is_dir()


def text_files(path: Path) -> list[Path]:
    """Return the text files in and below a directory by name, except hidden ones; none for one of datasets."""
    if not path.is_dir() or any(path.glob("*/dataset_info.json")) or (path / "dataset_info.json").is_file():
        return []
    found, seen = [], set[str]()
    for folder, folders, names in os.walk(path, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (Path(folder, name) for name in names if not name.startswith("."))
        found += [file for file in files if inner_suffix(file) in TEXT and file.is_file()]
    return sorted(found)


def check_table(path: Path, columns: Sequence[str]) -> tuple[int, str]:
    """Return the bytes of a table's files and a hash of them. Raises DataError without rows and these columns."""
    with readable(path):
        files = sorted(path.rglob("*.arrow")) if path.is_dir() else [require_file(path)]
        digest = hashlib.sha256()
        for file in files:
            with file.open("rb") as contents:
                digest.update(hashlib.file_digest(contents, "sha256").digest())
        names, n = described(path)
    missing = [column for column in columns if column not in names]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}, only {', '.join(names)}: expected {', '.join(columns)}")
    if not n:
        raise DataError(f"{path} has no rows")
    return sum(file.stat().st_size for file in files), digest.hexdigest()


def described(path: Path) -> tuple[list[str], int]:
    """Return the names of a table's columns, and its number of rows."""
    if not path.is_dir():
        table = _parquet(path)
        return table.schema_arrow.names, table.metadata.num_rows
    dataset = _dataset(path)
    return dataset.column_names, len(dataset)


def _parquet(path: Path) -> Any:
    require_file(path)
    return _needed("pyarrow.parquet", path).ParquetFile(path)


def _dataset(path: Path) -> Any:
    splits = sorted(folder.parent.name for folder in path.glob("*/dataset_info.json"))
    if splits:
        raise DataError(f"{path} holds the parts {', '.join(splits)}: name one of them, such as {path / splits[0]}")
    if not (path / "dataset_info.json").is_file():
        if not any(path.iterdir()):
            raise DataError(f"{path}: expected text files (.txt and .md) in it, got an empty directory; name another")
        raise DataError(
            f"{path}: expected a directory of the library datasets (saved by save_to_disk), or of text files "
            f"({' and '.join(TEXT)}); name files in it"
        )
    return _needed("datasets", path).load_from_disk(str(path))


def rows(path: Path, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
    """Yield these columns of a checked table, row by row; classes are given by name."""
    if not path.is_dir():
        for batch in _parquet(path).iter_batches(ROWS, columns=list(columns)):
            yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        return
    dataset = _dataset(path).select_columns(list(columns))
    named = {name: feature.int2str for name, feature in dataset.features.items() if hasattr(feature, "int2str")}
    for batch in dataset.iter(ROWS):
        for row in zip(*(batch[name] for name in columns), strict=True):
            yield [named[name](value) if name in named else value for name, value in zip(columns, row, strict=True)]
