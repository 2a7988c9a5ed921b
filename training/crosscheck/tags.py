"""The tagged statements of a source file, as the cross-check follows them."""

import ast
import dataclasses
import functools
import inspect
import pathlib
import re
from collections.abc import Iterator, Sequence

from algorithms.machinery.tags import Tag, algorithm_of, of_algorithm, tags_in, target_of, without_tag

__all__ = ["Function", "Source", "Statement", "Tag", "numbers", "read"]


@dataclasses.dataclass(frozen=True)
class Statement:
    """A tagged statement.

    Attributes:
        file: its path below the root of the repository.
        first, last: its first and last line of text; of a loop, those of its head.
        text: the text, without indentation and tag.
        tags: what its comment says.
        target: the name that it assigns, the first of several; None for a return.
        returns: whether it is a return.
        body: for a loop, the first and the last line of its body.
        end: for a decorated function, which is a loop and its body, the last statement of the body.
    """

    file: str
    first: int
    last: int
    text: str
    tags: tuple[Tag, ...]
    target: str | None
    returns: bool
    body: tuple[int, int] | None
    end: "Statement | None" = None


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a source file.

    Attributes:
        name: its name.
        file: the path of its file below the root of the repository.
        first, last: its first line (of its decorators, if any) and its last.
        algorithm: the algorithm that the first line of its docstring names.
        is_algorithm: whether it is that algorithm's own function.
        statements: its own tagged statements, by each line of their text.
        result: its last return, which does the paper's "return" where no statement is tagged with that.
    """

    name: str
    file: str
    first: int
    last: int
    algorithm: int | None
    is_algorithm: bool
    statements: dict[int, Statement]
    result: Statement | None


Source = dict[int, Function]
"""The functions of a file, by the line that their code objects give as their first."""


def numbers(tags: Sequence[Tag], algorithm: int, order: Sequence[str]) -> tuple[str, ...]:
    """The lines of an algorithm that tags name.

    `tags`: the tags of a statement; `algorithm`: the algorithm in question; `order`: the numbers of all its lines,
    "return" last.
    """
    named: set[str] = set()
    for tag in of_algorithm(tuple(tags), algorithm):
        if tag.first == "return":
            named.add("return")
        else:
            named.update(str(n) for n in range(int(tag.first), int(tag.last) + 1))
    return tuple(number for number in order if number in named)


@functools.cache
def read(path: pathlib.Path, root: pathlib.Path) -> Source:
    """The functions of a file, with their tagged statements."""
    text = path.read_text("utf-8")
    file = path.relative_to(root).as_posix()
    comments = tags_in(text)
    functions = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            summary = (ast.get_docstring(node) or "").split("\n")[0]
            first = _first_line(node)
            functions[first] = Function(
                name=node.name,
                file=file,
                first=first,
                last=node.end_lineno or node.lineno,
                algorithm=algorithm_of(node),
                is_algorithm=re.match(r"(Return )?Algorithm \d+:", summary) is not None,
                statements=_statements(node, text.splitlines(), comments, file),
                result=_result(node, text.splitlines(), file),
            )
    return functions


def _statements(function: ast.FunctionDef, text: list[str], comments: dict, file: str) -> dict[int, Statement]:
    found = {}
    for node in _own(function.body):
        first, last = node.lineno, node.end_lineno or node.lineno
        body = None
        if isinstance(node, (ast.For, ast.While)):
            body = (node.body[0].lineno, node.body[-1].end_lineno or last)
            last = body[0] - 1
        elif isinstance(node, (ast.If, ast.With)):
            continue
        elif isinstance(node, ast.FunctionDef):  # a body below the head of its loop, `@for_each(…)  # line n`
            first, last = _first_line(node), _first_line(node.body[0]) - 1
        tags = next((comments[n] for n in range(first, last + 1) if n in comments), None)
        if tags:
            statement = _statement(node, first, last, text, file, tags, body)
            found.update(dict.fromkeys(range(first, last + 1), statement))
    return found


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def _result(function: ast.FunctionDef, text: list[str], file: str) -> Statement | None:
    returns = [node for node in _own(function.body) if isinstance(node, ast.Return)]
    if not returns:
        return None
    node = returns[-1]
    return _statement(node, node.lineno, node.end_lineno or node.lineno, text, file, (), None)


def _statement(
    node: ast.stmt,
    first: int,
    last: int,
    text: list[str],
    file: str,
    tags: tuple[Tag, ...],
    body: tuple[int, int] | None,
) -> Statement:
    end = node.body[-1] if isinstance(node, ast.FunctionDef) else None
    return Statement(
        file=file,
        first=first,
        last=last,
        text=_without_tags(text[first - 1 : last]),
        tags=tags,
        target=node.name if isinstance(node, ast.FunctionDef) else target_of(node),
        returns=isinstance(node, ast.Return),
        body=body,
        end=end and _statement(end, end.lineno, end.end_lineno or end.lineno, text, file, tags, None),
    )


def _own(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a function's body, inner blocks included, but not those of the functions inside it."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            continue
        yield node
        if isinstance(node, ast.FunctionDef):
            continue
        for field in ("body", "orelse"):
            yield from _own(getattr(node, field, []))


def _without_tags(lines: list[str]) -> str:
    return inspect.cleandoc("\n".join(map(without_tag, lines)))
