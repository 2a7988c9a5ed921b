"""Listings of the algorithms' code: highlighted, with the lines of the paper that each line executes."""

import ast
import dataclasses
import functools
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from training.crosscheck.report import Place


@dataclasses.dataclass(frozen=True)
class CodeLine:
    """A line of code."""

    number: int  # line number in the file
    html: Markup  # its text, highlighted
    executes: tuple[str, ...] = ()  # the lines of the paper that it executes
    first_of: tuple[str, ...] = ()  # the lines of the paper that no earlier line executes, so links lead here

    @property
    def indent(self) -> int:
        """Number of leading spaces; if the line is wrapped, its rest is indented as much."""
        text = re.sub("<[^>]*>", "", self.html)
        return len(text) - len(text.lstrip())


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """The body of a function."""

    file: str  # path of the file
    page: str  # the book's page of the file
    signature: str  # the function's name and argument names
    lines: tuple[CodeLine, ...]  # its body without the docstring


@functools.cache
def highlighted(path: pathlib.Path) -> tuple[Markup, ...]:
    """Return the lines of a Python file as HTML."""
    html = highlight(path.read_text("utf-8"), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return tuple(Markup(line) for line in html.split("\n"))


def listing(path: pathlib.Path, first: int = 1, last: int | None = None) -> tuple[CodeLine, ...]:
    """Return some or all lines of a file, without their common indentation."""
    html = highlighted(path)[first - 1 : last]
    lines = [CodeLine(first + i, line) for i, line in enumerate(html)]
    indent = min((line.indent for line in lines if line.html), default=0)
    return tuple(CodeLine(line.number, Markup(str(line.html)[indent:])) for line in lines)


def page_of(file: str) -> str:
    """Return the name of the book's page of a source file."""
    parts = pathlib.PurePosixPath(file).with_suffix("").parts[1:]
    return f"source-{'-'.join(parts)}.html"


def excerpts(results: Sequence[Any], root: pathlib.Path) -> list[Excerpt]:
    """Return the functions that execute the lines of an algorithm, in the order of the lines, as a check found them."""
    order = {result.line.number: i for i, result in enumerate(results)}
    places: dict[tuple[str, int], list[tuple[Place, str]]] = {}
    for result in results:
        for place in result.places:
            node = _function(root / place.file, place.line)
            places.setdefault((place.file, node.lineno), []).append((place, result.line.number))
    functions = sorted(places, key=lambda key: min(order[number] for _, number in places[key]))
    seen: set[str] = set()
    return [_excerpt(root, file, lineno, places[file, lineno], seen) for file, lineno in functions]


@functools.cache
def _statements(path: pathlib.Path) -> tuple[ast.stmt, ...]:
    """Return the statements of a Python file, the outermost first."""
    return tuple(node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.stmt))


def _function(path: pathlib.Path, line: int) -> ast.stmt:
    """Return the outermost function around a line, or the outermost statement where none is."""
    around = [node for node in _statements(path) if node.lineno <= line <= (node.end_lineno or line)]
    return next((node for node in around if isinstance(node, ast.FunctionDef)), around[0])


def _excerpt(root: pathlib.Path, file: str, lineno: int, places: list[tuple[Place, str]], seen: set[str]) -> Excerpt:
    node = _function(root / file, lineno)
    body = [node]
    if isinstance(node, ast.FunctionDef):
        body = node.body[1:] if ast.get_docstring(node) else node.body
    lines = []
    for line in listing(root / file, body[0].lineno, body[-1].end_lineno):
        executes = tuple(dict.fromkeys(n for place, n in places if place.line <= line.number <= place.last))
        new = tuple(n for n in executes if n not in seen)
        seen.update(new)
        lines.append(dataclasses.replace(line, executes=executes, first_of=new))
    return Excerpt(file, page_of(file), _signature(node) if isinstance(node, ast.FunctionDef) else "", tuple(lines))


def _signature(function: ast.FunctionDef) -> str:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    names += ["*", *(argument.arg for argument in function.args.kwonlyargs)] if function.args.kwonlyargs else []
    names += [f"**{function.args.kwarg.arg}"] if function.args.kwarg else []
    return f"{function.name}({', '.join(names)})"
