"""Reads the tags of a source file, which say which line of the paper each statement computes.

A tag is a comment on a statement: ``# line 4``, ``# lines 4-5, return``, ``# line 3: those with t < l``, or
``# line 6; line 10 of Algorithm 12``. It belongs to the algorithm named in the first line of the function's docstring;
if that names none, to the algorithm that called the function. ``# inside`` tags an intermediate step of the caller's
line.
"""

import ast
import functools
import io
import re
import tokenize
from typing import NamedTuple

_TAG = re.compile(r"# (lines? \d|return\b)")
_NUMBERS = re.compile(r"lines? (\d+)(?:-(\d+))?(?: of Algorithm (\d+))?|(\breturn\b)")


class Tag(NamedTuple):
    """A tag's contents."""

    algorithm: int | None  # the algorithm that the tag names; None for the function's
    first: str  # the first of the lines, "return" for the unnumbered return
    last: str  # the last of them


@functools.cache  # a module is asked for each of its methods
def tags_in(text: str) -> dict[int, tuple[Tag, ...]]:
    """Line number → tags, for the tagged lines of a source; an empty tuple for ``# inside``."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if _TAG.match(token.string):
            parts = _NUMBERS.findall(token.string.split(":")[0])
            found[token.start[0]] = tuple(
                Tag(int(algorithm) if algorithm else None, returns or first, returns or last or first)
                for first, last, algorithm, returns in parts
            )
        elif token.string == "# inside":
            found[token.start[0]] = ()
    return found


def without_tag(line: str) -> str:
    """A line of a source without its tag."""
    return re.sub(rf"\s*(?:{_TAG.pattern}|# inside$).*$", "", line)


def tags_of(node: ast.stmt, tags: dict[int, tuple[Tag, ...]]) -> tuple[Tag, ...] | None:
    """The tags of a statement, or None; for a loop or a function, the tags of its head."""
    body = getattr(node, "body", None)
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return next((tags[n] for n in range(first, last + 1) if n in tags), None)


def of_algorithm(tags: tuple[Tag, ...], algorithm: int | None) -> list[Tag]:
    """The tags that name the algorithm; if none does, those that name no algorithm."""
    return [tag for tag in tags if tag.algorithm == algorithm] or [tag for tag in tags if tag.algorithm is None]


def algorithm_of(function: ast.FunctionDef) -> int | None:
    """The algorithm named in the first line of a function's docstring."""
    named = re.search(r"\bAlgorithm (\d+)\b", (ast.get_docstring(function) or "").split("\n")[0])
    return int(named[1]) if named else None


def target_of(node: ast.stmt) -> str | None:
    """The name that a statement assigns, or the first of several; None if it assigns none."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    while isinstance(target, ast.Tuple):
        target = target.elts[0]
    return target.id if isinstance(target, ast.Name) else None
