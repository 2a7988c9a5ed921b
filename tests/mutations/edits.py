"""Wrong edits of the code: where each is made, making it in a scratch copy, and whether a judge notices it."""

import ast
import concurrent.futures
import contextlib
import dataclasses
import itertools
import pathlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from algorithms.machinery.tags import tags_in

__all__ = ["Copy", "Edit", "Offsets", "Planted", "Verdict", "statements", "try_all"]

TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|[^\s\w]""")
PARSING = threading.Lock()
"""Held while code is parsed: in CPython 3.11 two threads that parse disturb each other."""
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
    at: tuple[int, int] | None = None  # where that is, from the first character to the one after it, if that is known

    def made(self, root: pathlib.Path) -> str:
        """Return the text of the file with the edit made, in a repository or environment with this root.

        Raises:
            ValueError: if the code to replace is not there exactly once.
        """
        text = (root / self.file).read_text("utf-8")
        found = [self.at] if self.at else spans(text, self.function, self.statement, self.old)
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
    says: str = ""  # what the check of foreign code must say of it


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
    wanted = [token for token, _, _ in _tokens(old)]
    comments, where, found = tags_in(text), Offsets(text), []
    inside = (node for name, node in statements(ast.parse(text)) if name == function)
    for names, node in itertools.chain.from_iterable(map(_named, inside)):
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


def statements(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield all statements, each with the qualified name of the function or class that it is in."""
    for child in (*getattr(node, "body", ()), *getattr(node, "orelse", ())):
        yield function, child
        is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        yield from statements(child, f"{function}.{child.name}".lstrip(".") if is_named else function)


def _named(node: ast.stmt) -> Iterator[tuple[set[str], ast.stmt | ast.expr]]:
    """The names that a statement goes by, and what of it may be edited."""
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


class Copy:
    """A scratch copy of packages of the repository, in which one edit at a time is made."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path, *packages: str) -> None:
        self.root, self.folder = root, folder
        for package in packages:
            shutil.copytree(root / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))

    @contextlib.contextmanager
    def edited(self, edit: Edit) -> Iterator[None]:
        """Make an edit, as long as the context lasts. Raises ValueError as `Edit.made`."""
        path = self.folder / edit.file
        with PARSING:
            path.write_text(edit.made(self.root), "utf-8")
        try:
            yield
        finally:
            shutil.copy2(self.root / edit.file, path)
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):  # of the edit, perhaps of the same second
                compiled.unlink()


class Verdict(NamedTuple):
    """What a judge says of an edit."""

    answers: Sequence[bool]  # to each of the judge's questions, whether it is noticed
    says: str


def try_all(
    names: Sequence[str],
    judge: Callable[[str], Verdict],
    *questions: str,
    say: Callable[[str], object],
    jobs: int = 1,
) -> int:
    """Judge edits, up to `jobs` at a time, and say the result of each. At the end, say how often each question was
    answered yes: "3 of 4 mutations located, 2 named" for the questions "mutations located" and "named". Return the exit
    status: 0 if all answers are yes, else 1.
    """
    counts = [0] * len(questions)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for number, (name, verdict) in enumerate(zip(names, pool.map(judge, names), strict=True), start=1):
            counts = [n + answer for n, answer in zip(counts, verdict.answers, strict=True)]
            say(f"[{number}/{len(names)}] {name}: {verdict.says}")
    said = [f"{n} {question}" for n, question in zip(counts, questions, strict=True)]
    say(", ".join(said).replace(" ", f" of {len(names)} ", 1))
    return int(min(counts) < len(names))
