"""Long texts in sections, cut between paragraphs, without ever holding more than one section."""

from collections.abc import Iterable, Iterator

LONGEST = 8  # sections' sizes: a paragraph that goes on so long is cut between lines


def sections(lines: Iterable[str], size: int) -> Iterator[tuple[int, str]]:
    """Cuts a text into sections.

    A section ends before the first paragraph that begins after `size` characters; where there is none within
    8 times as many, between two lines. White space at the end of the text is left to the last section.

    Args:
      lines: the text's lines with their ends.
      size: characters.

    Yields:
      the number of a section's first line, from 1, and its text; joined they give the text, unless it is
      blank.
    """
    section: list[str] = []
    first, characters, blank = 1, 0, False
    for number, line in enumerate(lines, start=1):
        new_paragraph = blank and not line.isspace()
        if characters >= size * LONGEST or (characters >= size and new_paragraph):
            text = "".join(section)
            if not text.isspace():
                yield first, text
                section, first, characters = [], number, 0
        section.append(line)
        characters += len(line)
        blank = line.isspace()
    text = "".join(section)
    if text and not text.isspace():
        yield first, text
