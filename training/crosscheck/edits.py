"""Wrong edits of the code: finding the statement that each is made in, and making it."""

import ast
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator

from algorithms.machinery.tags import tags_in

__all__ = ["Edit", "Offsets", "Planted"]

TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|[^\s\w]""")
COMPOUND = {ast.If: ("if", "test"), ast.While: ("while", "test"), ast.For: ("for", "iter")}


@dataclasses.dataclass(frozen=True)
class Edit:
    """A wrong edit of one statement."""

    file: str  # the file that it is made in, from the root of the repository
    # the function, as Python qualifies its name, without ``<locals>``: ``"hidden_state.layer"``; ``""`` for the module
    function: str
    # which of its statements: the paper's line that its tag names, the name that it assigns, or ``"return"``. For a
    # compound statement or a decorated function, its head is meant: ``"if"``, or its name
    statement: str
    old: str  # what is replaced: tokens that occur once in these statements, however they are spaced or broken
    new: str  # what is put in its place

    def made(self, root: pathlib.Path) -> str:
        """Return the text of the file with the edit made, in a repository or environment with this root.

        Raises:
            ValueError: if the code to replace is not there exactly once.
        """
        text = (root / self.file).read_text("utf-8")
        found = spans(text, self.function, self.statement, self.old)
        if len(found) != 1:
            raise ValueError(
                f"{self.file}, {self.function or 'module'}, statement {self.statement!r}: expected the code of an edit "
                f"once, found it {len(found)} times: {self.old!r}; bring the edit up to date"
            )
        first, end = found[0]
        return text[:first] + self.new + text[end:]


@dataclasses.dataclass(frozen=True)
class Planted:
    """A bug that the cross-check must locate."""

    edit: Edit  # the bug
    algorithm: int  # the algorithm that it spoils first
    line: str  # its line that the cross-check must name
    # the name of the variant whose cross-check must name it, where the paper's lines stay right
    variant: str | None = None


class Offsets:
    """Where the nodes of a file are in its text."""

    def __init__(self, text: str) -> None:
        self.text, self._lines = text, text.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Return the first and last offset of a node."""
        last = node.end_lineno or node.lineno
        return self._at(node.lineno, node.col_offset), self._at(last, node.end_col_offset or 0)

    def source(self, node: ast.stmt | ast.expr) -> str:
        """Return the code of a node."""
        first, end = self.span(node)
        return self.text[first:end]

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def spans(text: str, function: str, statement: str, old: str) -> list[tuple[int, int]]:
    """Return where a piece of code is in the statements of a function that a name or a tag means: first and last offset.

    `text`: the text of the file; `function`, `statement`, `old`: as in `Edit`.
    """
    tree, wanted = ast.parse(text), [token for token, _, _ in _tokens(old)]
    comments, where, found = tags_in(text), Offsets(text), []
    for names, node in _statements(_body(tree, function)):
        first, last = node.lineno, node.end_lineno or node.lineno
        tags = next((comments[n] for n in range(first, last + 1) if n in comments), ())
        if statement in names or statement in {tag.first for tag in tags}:
            at, end = where.span(node)
            tokens = list(_tokens(text[at:end]))
            for i in range(len(tokens) - len(wanted) + 1):
                if [token for token, _, _ in tokens[i : i + len(wanted)]] == wanted:
                    found.append((at + tokens[i][1], at + tokens[i + len(wanted) - 1][2]))
    return found


def _tokens(code: str) -> Iterator[tuple[str, int, int]]:
    """The tokens of a piece of code, which need not be a whole expression, without comments."""
    for match in TOKEN.finditer(code):
        if not match.group().startswith("#"):
            yield match.group(), match.start(), match.end()


def _body(tree: ast.Module, function: str) -> list[ast.stmt]:
    """The statements of a function; none if there is no such function."""
    body = tree.body
    for name in function.split(".") if function else ():
        inside = [node for node in _flat(body) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        body = next((node.body for node in inside if node.name == name), [])
    return body


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements with those of the blocks in them, but without those of functions and classes in them."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            for field in ("body", "orelse"):
                yield from _flat(getattr(node, field, []))


def _statements(body: list[ast.stmt]) -> Iterator[tuple[set[str], ast.stmt | ast.expr]]:
    """The names that each statement goes by, and what of it may be edited."""
    for node in _flat(body):
        if type(node) in COMPOUND:
            name, head = COMPOUND[type(node)]
            yield {name}, getattr(node, head)
        elif isinstance(node, ast.FunctionDef):
            yield from (({node.name}, decorator) for decorator in node.decorator_list)
        elif isinstance(node, ast.Return):
            yield {"return"}, node
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield {ast.unparse(n) for target in targets for n in ast.walk(target) if isinstance(n, ast.expr)}, node
