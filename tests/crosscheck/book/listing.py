"""The code of the algorithms for the book: highlighted, and each line with the paper's lines that it does."""

import ast
import dataclasses
import functools
import pathlib

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tests.crosscheck.comparison import LineResult, Place

__all__ = ["CodeLine", "Excerpt", "excerpts", "highlighted", "style_sheet"]


@dataclasses.dataclass(frozen=True)
class CodeLine:
    """A line of code.

    Attributes:
        number: its number in the file.
        html: its text, highlighted.
        does: the lines of the paper that it does.
        first_of: those of them that no line above it does, so that it is the one to jump to.
    """

    number: int
    html: Markup
    does: tuple[str, ...]
    first_of: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """The body of a function.

    Attributes:
        file: the file's path.
        page: the book's page of the file.
        signature: the function's name and its arguments.
        lines: its body without the docstring.
    """

    file: str
    page: str
    signature: str
    lines: tuple[CodeLine, ...]


@functools.cache
def highlighted(path: pathlib.Path) -> tuple[Markup, ...]:
    """The lines of a Python file as HTML."""
    html = highlight(path.read_text("utf-8"), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return tuple(Markup(line) for line in html.split("\n"))


def page_of(file: str) -> str:
    """The book's page of a source file."""
    parts = pathlib.PurePosixPath(file).with_suffix("").parts[1:]
    return f"source-{'-'.join(parts)}.html"


def style_sheet() -> str:
    """The few classes of the highlighting that the book's style uses."""
    return ".c1,.sd,.s2,.s1{color:var(--quiet)}.k,.kn,.ow{color:var(--keyword)}"


def excerpts(results: list[LineResult], root: pathlib.Path) -> list[Excerpt]:
    """The functions that do the lines of an algorithm, in the order in which they do them."""
    order = {result.line.number: i for i, result in enumerate(results)}
    places: dict[tuple[str, int], list[tuple[Place, str]]] = {}
    for result in results:
        for place in result.places:
            node = _function(root / place.file, place.line)
            places.setdefault((place.file, node.lineno), []).append((place, result.line.number))
    functions = sorted(places, key=lambda key: min(order[number] for _, number in places[key]))
    seen: set[str] = set()
    return [_excerpt(root, file, lineno, places[file, lineno], seen) for file, lineno in functions]


def _function(path: pathlib.Path, line: int) -> ast.FunctionDef:
    """The outermost function around a line."""
    for node in ast.parse(path.read_text("utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in inside:
            if isinstance(function, ast.FunctionDef) and function.lineno <= line <= (function.end_lineno or line):
                return function
    raise LookupError(f"{path}:{line}: no function is around this line")


def _excerpt(root: pathlib.Path, file: str, lineno: int, places: list[tuple[Place, str]], seen: set[str]) -> Excerpt:
    node = _function(root / file, lineno)
    body = node.body[1:] if ast.get_docstring(node) else node.body
    html = highlighted(root / file)
    first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    indent = body[0].col_offset
    lines = []
    for number in range(first, last + 1):
        does = tuple(n for place, n in places if place.line <= number <= place.last)
        new = tuple(dict.fromkeys(n for n in does if n not in seen))
        seen.update(new)
        lines.append(CodeLine(number, Markup(str(html[number - 1])[indent:]), tuple(dict.fromkeys(does)), new))
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    names += ["*", *(argument.arg for argument in node.args.kwonlyargs)] if node.args.kwonlyargs else []
    return Excerpt(file, page_of(file), f"{node.name}({', '.join(names)})", tuple(lines))
