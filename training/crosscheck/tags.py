"""The tagged statements of a source file, as the cross-check follows them."""

import ast
import dataclasses
import functools
import inspect
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from algorithms.machinery.tags import Tag, algorithm_of, of_algorithm, tags_in, target_of, without_tag

__all__ = ["Function", "Source", "Statement", "Tag", "numbers", "read"]


@dataclasses.dataclass(frozen=True)
class Statement:
    """A tagged statement."""

    file: str  # its path below the root of the repository
    first: int  # its first line of text; of a loop, of its head
    last: int  # its last
    text: str  # the text, without indentation and tag
    tags: tuple[Tag, ...]  # what its comment says
    target: str | None  # the name that it assigns, the first of several; None for a return
    returns: bool  # whether it is a return
    body: tuple[int, int] | None  # for a `for` or `while`, the first and the last line of its body
    # the last statement of the body, for these and for a decorated function, which is a loop and its body
    end: "Statement | None"


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a source file."""

    name: str  # its name
    file: str  # the path of its file below the root of the repository
    first: int  # its first line, of its decorators, if any
    last: int  # its last
    algorithm: int | None  # the algorithm that the first line of its docstring names
    is_algorithm: bool  # whether it is that algorithm's own function
    statements: dict[int, Statement]  # its own tagged statements, by each line of their text
    result: Statement | None  # its last return, which does the paper's "return" where no statement is tagged with that


Source = dict[int, Function]
"""The functions of a file, by the line that their code objects give as their first."""


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
def read(path: pathlib.Path, root: pathlib.Path) -> Source:
    """The functions of a file, with their tagged statements."""
    text = path.read_text("utf-8")
    source = _Text(path.relative_to(root).as_posix(), text.splitlines(), tags_in(text))
    functions = [source.function(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    return {function.first: function for function in functions}


class _Text(NamedTuple):
    """A file, its lines, and the tags at their numbers."""

    file: str
    lines: list[str]
    comments: dict[int, tuple[Tag, ...]]

    def function(self, node: ast.FunctionDef) -> Function:
        found, result, before = {}, None, None
        for own in _own(node.body):
            result = self.statement(own, ()) if isinstance(own, ast.Return) else result
            if not isinstance(own, (ast.If, ast.With)):
                first, last = _head(own)
                tags = next((self.comments[n] for n in range(first, last + 1) if n in self.comments), None)
                if tags:
                    statement = self.statement(own, tags)
                    key = first - 1, tags, statement.target
                    if before is not None and (before.last, before.tags, before.target) == key:  # of one line
                        text = f"{before.text}\n{statement.text}"
                        statement = dataclasses.replace(statement, first=before.first, text=text)
                    found.update(dict.fromkeys(range(statement.first, last + 1), statement))
                    before = statement
        summary, first = (ast.get_docstring(node) or "").split("\n")[0], _first_line(node)
        is_algorithm = re.match(r"(Return )?Algorithm \d+:", summary) is not None
        last = node.end_lineno or first
        return Function(node.name, self.file, first, last, algorithm_of(node), is_algorithm, found, result)

    def statement(self, node: Any, tags: tuple[Tag, ...]) -> Statement:
        (first, last), is_loop = _head(node), isinstance(node, (ast.For, ast.While))
        end = getattr(node, "body", [None])[-1]
        while isinstance(end, ast.If):
            end = (end.orelse or end.body)[-1]
        return Statement(
            file=self.file,
            first=first,
            last=last,
            text=inspect.cleandoc("\n".join(map(without_tag, self.lines[first - 1 : last]))),
            tags=tags,
            target=node.name if isinstance(node, ast.FunctionDef) else target_of(node),
            returns=isinstance(node, ast.Return),
            body=(node.body[0].lineno, node.body[-1].end_lineno or last) if is_loop else None,
            end=end and self.statement(end, tags),
        )


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def _head(node: ast.stmt) -> tuple[int, int]:
    """The first and the last line of a statement; of one with a body, those of its head."""
    body = getattr(node, "body", None)
    return _first_line(node), _first_line(body[0]) - 1 if body else node.end_lineno or node.lineno


def _own(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a function's body, inner blocks included, but not those of the functions inside it."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            continue
        yield node
        if not isinstance(node, ast.FunctionDef):
            for field in ("body", "orelse"):
                yield from _own(getattr(node, field, []))
