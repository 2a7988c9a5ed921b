"""The tagged statements of a source file, as the cross-check follows them."""

import ast
import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from algorithms.machinery.tags import Tag, algorithm_of, of_algorithm, tags_in, tags_of, target_of, without_tag

from .report import Place

__all__ = ["Function", "Statement", "numbers", "read"]


@dataclasses.dataclass(frozen=True)
class Statement:
    """A tagged statement."""

    place: Place  # its text, without indentation and tag; of a loop, its head
    tags: tuple[Tag, ...]  # what its comment says
    target: str | None  # the name that it assigns, the first of several; None for a return
    returns: bool  # whether it is a return
    body: range  # for a `for` or `while`, the lines of its body
    # the last statement of the body, for these and for a decorated function, which is a loop and its body
    end: "Statement | None"


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a source file."""

    name: str  # its name
    lines: range  # from its first line, of its decorators, if any
    algorithm: int | None  # the algorithm that the first line of its docstring names
    statements: dict[int, Statement]  # its own tagged statements, by each line of their text


def numbers(tags: Sequence[Tag], algorithm: int, order: Sequence[str]) -> tuple[str, ...]:
    """The lines of an algorithm that tags name.

    `tags`: the tags of a statement; `algorithm`: the algorithm in question; `order`: the numbers of all its lines,
    "return" last.
    """
    named: set[str] = set()
    for tag in of_algorithm(tuple(tags), algorithm):
        is_return = tag.first == "return"
        named.update(["return"] if is_return else map(str, range(int(tag.first), int(tag.last) + 1)))
    return tuple(number for number in order if number in named)


@functools.cache
def read(path: pathlib.Path, root: pathlib.Path) -> dict[int, Function]:
    """The functions of a file, by the line that their code objects give as their first."""
    text, file = path.read_text("utf-8"), path.relative_to(root).as_posix()
    lines, comments = text.splitlines(), tags_in(text)

    def statement(node: Any, tags: tuple[Tag, ...]) -> Statement:
        first, last, end, inside = _first_line(node), _last_line(node), None, range(0)
        if body := getattr(node, "body", []):
            last, end = _first_line(body[0]) - 1, body[-1]
            inside = range(last + 1, _last_line(node) + 1)
        while isinstance(end, ast.If):
            end = (end.orelse or end.body)[-1]
        printed = inspect.cleandoc("\n".join(map(without_tag, lines[first - 1 : last])))
        return Statement(
            place=Place(file, first, last, printed),
            tags=tags,
            target=node.name if isinstance(node, ast.FunctionDef) else target_of(node),
            returns=isinstance(node, ast.Return),
            body=inside if isinstance(node, (ast.For, ast.While)) else range(0),
            end=end and statement(end, tags),
        )

    def function(node: ast.FunctionDef) -> Function:
        found: dict[int, Statement] = {}
        for own in _own(node.body):
            if not isinstance(own, (ast.If, ast.With)) and (tags := tags_of(own, comments)):
                tagged = statement(own, tags)
                found |= dict.fromkeys(range(tagged.place.line, tagged.place.last + 1), tagged)
        return Function(node.name, range(_first_line(node), _last_line(node) + 1), algorithm_of(node), found)

    functions = (function(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return {found.lines.start: found for found in functions}


def _first_line(node: Any) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def _last_line(node: Any) -> int:
    return node.end_lineno or node.lineno


def _own(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a function's body, inner blocks included, but not those of the functions inside it."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            continue
        yield node
        if not isinstance(node, ast.FunctionDef):
            for field in ("body", "orelse"):
                yield from _own(getattr(node, field, []))
