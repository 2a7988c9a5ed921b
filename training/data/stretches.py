"""Boundaries at which a text is divided into stretches, some of them held out, and the documents that stay together."""

from collections.abc import Iterable, Iterator
from typing import TextIO

LONGEST = 2  # times the size of a section: a longer paragraph is split between lines
LARGEST_DOCUMENT = 1 << 22  # characters
Numbered = tuple[int, str]  # a text, and the number of its first line


def sections(lines: Iterable[str], size: int) -> Iterator[Numbered]:
    """Yield sections of a text, each with the number of its first line; joined, they are the text, unless it is blank.
    After `size` characters, a section ends before the next paragraph, or between two pieces of a line that was too long
    to be read at once; after twice as many, before the next line. White space at the end belongs to the last one.
    """
    section: list[str] = []
    first, number, characters, blank, ended = 1, 1, 0, False, True
    for line in lines:
        may_end = not ended or (blank and not line.isspace())
        if characters >= size * LONGEST or (characters >= size and may_end):
            text = "".join(section)
            if not text.isspace():
                yield first, text
                section, first, characters = [], number, 0
        section.append(line)
        characters += len(line)
        blank, ended = line.isspace(), line.endswith("\n")
        number += ended
    text = "".join(section)
    if text and not text.isspace():
        yield first, text


def joined(stretches: Iterable[Numbered], chosen: Iterable[int]) -> Iterator[Numbered]:
    """Yield the chosen stretches of a file as documents: those that follow each other are one, of at most 4 MiB."""
    document: list[str] = []
    first, characters = 0, 0
    for (number, text), is_chosen in zip(stretches, chosen, strict=False):
        if document and not (is_chosen and characters + len(text) <= LARGEST_DOCUMENT):
            yield first, "".join(document)
            document, characters = [], 0
        if is_chosen:
            first = first if document else number
            document.append(text)
            characters += len(text)
    if document:
        yield first, "".join(document)


def pieces(file: TextIO, longest: int) -> Iterator[str]:
    """Yield a file's lines with their newlines; lines over `longest` in pieces, split after a space if possible."""
    rest = ""
    while piece := rest + file.readline(longest - len(rest)):
        end = 0 if len(piece) < longest or piece.endswith("\n") else piece.rfind(" ") + 1
        yield piece[: end or None]
        rest = piece[end:] if end else ""
