"""Text for a person's eyes: a model's text may hold control characters, and a terminal obeys them."""

import re
import sys
from typing import TextIO

UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that reverse the direction of writing."""


def visible(text: str) -> str:
    r"""Return the text with unsafe characters as their escapes.

    Example:
        >>> visible("red: \x1b[31m")
        'red: \\x1b[31m'
    """
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def show(text: str, *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print a model's text; files and pipes get it unchanged."""
    stream: TextIO = file or sys.stdout
    print(visible(text) if stream.isatty() else text, end=end, file=stream, flush=True)


def say(text: str) -> None:
    """Print a message for the user, on standard error."""
    show(text, file=sys.stderr)
