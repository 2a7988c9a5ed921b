"""Which statements of a source file are tagged with which lines of which algorithm.

A tag is a comment on a statement: `# line 4`, `# lines 4-5, return`, `# line 3: those with t < l`, `# line 6; line 10
of Algorithm 12`. It belongs to the algorithm that the first line of the function's docstring names, or, where that
names none, to the algorithm that called the function.
"""

import ast
import dataclasses
import functools
import inspect
import io
import pathlib
import re
import tokenize
from collections.abc import Iterator, Sequence

__all__ = ["Function", "Source", "Statement", "Tag", "numbers", "read"]

LOOPS = {"scan", "while_loop", "fori_loop", "map", "for_each_layer"}
NUMBERS = re.compile(r"lines? (\d+)(?:-(\d+))?(?: of Algorithm (\d+))?|(\breturn\b)")


@dataclasses.dataclass(frozen=True)
class Tag:
    """What a comment says.

    Attributes:
        algorithm: the algorithm that it names itself; None for that of the function.
        first, last: the lines, "return" for the unnumbered return.
    """

    algorithm: int | None
    first: str
    last: str


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
        scans: the functions that are the bodies of a loop in it: of `jax.lax`, over the layers, or below this head.
    """

    file: str
    first: int
    last: int
    text: str
    tags: tuple[Tag, ...]
    target: str | None
    returns: bool
    body: tuple[int, int] | None
    scans: frozenset[str]


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

    Args:
        tags: the tags of a statement.
        algorithm: the algorithm in question.
        order: the numbers of all its lines, "return" last.
    """
    own = [tag for tag in tags if tag.algorithm == algorithm] or [tag for tag in tags if tag.algorithm is None]
    named: set[str] = set()
    for tag in own:
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
    comments = dict(_tags(text))
    functions = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            summary = (ast.get_docstring(node) or "").split("\n")[0]
            named = re.search(r"\bAlgorithm (\d+)\b", summary)
            first = _first_line(node)
            functions[first] = Function(
                name=node.name,
                file=file,
                first=first,
                last=node.end_lineno or node.lineno,
                algorithm=int(named[1]) if named else None,
                is_algorithm=re.match(r"(Return )?Algorithm \d+:", summary) is not None,
                statements=_statements(node, text.splitlines(), comments, file),
                result=_result(node, text.splitlines(), file),
            )
    return functions


def _tags(text: str) -> Iterator[tuple[int, tuple[Tag, ...]]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and re.match(r"# (lines? \d|return\b)", token.string):
            yield token.start[0], tuple(_parse(token.string.split(":")[0]))


def _parse(comment: str) -> Iterator[Tag]:
    for first, last, algorithm, returns in NUMBERS.findall(comment):
        yield Tag(int(algorithm) if algorithm else None, returns or first, returns or last or first)


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
    return Statement(
        file=file,
        first=first,
        last=last,
        text=_without_tags(text[first - 1 : last]),
        tags=tags,
        target=_target(node),
        returns=isinstance(node, ast.Return),
        body=body,
        scans=frozenset(_scanned(node)),
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
    return inspect.cleandoc("\n".join(re.sub(r"\s*# (lines? \d|return\b).*$", "", line) for line in lines))


def _target(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    first = targets[0]
    while isinstance(first, ast.Tuple):
        first = first.elts[0]
    return first.id if isinstance(first, ast.Name) else None


def _scanned(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.For, ast.While)):
        return
    if isinstance(node, ast.FunctionDef):
        yield node.name
        return
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
            if name in LOOPS:
                yield from (argument.id for argument in call.args if isinstance(argument, ast.Name))
