"""The offline corpus: the English documentation that every machine with Python has.

The help topics of `pydoc_data.topics` and the docstrings of the standard library's modules, classes and
functions, read from their source without importing them. They repeat themselves, so a paragraph is kept
where it first occurs only; then documents are held out.
"""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from training.data.records import Document, hash64, normalized, paragraphs

# Not documentation of the library: installed packages, tests, and programs.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def standard_library_files() -> list[Path]:
    """Return the standard library's source files, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (path.relative_to(root) for path in root.rglob("*.py"))
    return [root / f for f in sorted(files) if not LEFT_OUT & set(f.parts)]


def docstrings(node: Documented, name: str) -> Iterator[Document]:
    """Yield the docstrings of a module, and of the classes and functions in it, in the source's order."""
    text = ast.get_docstring(node)
    if text:
        yield Document(text, name)
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from docstrings(child, f"{name}.{child.name}")


def _parsed(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the library's own source do not concern the user
        return ast.parse(path.read_bytes())


def _sources() -> Iterator[Document]:
    for name, text in sorted(topics.items()):
        yield Document(text, f"help({name!r})")
    root = Path(sysconfig.get_path("stdlib"))
    for path in standard_library_files():
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        try:
            tree = _parsed(path)
        except (SyntaxError, ValueError):  # templates, and files kept broken on purpose
            continue
        yield from docstrings(tree, module)


def documentation() -> list[Document]:
    """Return help topics and docstrings, no paragraph twice; the same in every run with the same Python."""
    seen: set[int] = set()
    documents = []
    for document in _sources():
        new = []
        for paragraph in paragraphs(document.text):
            key = hash64(normalized(paragraph))
            if key not in seen:
                seen.add(key)
                new.append(paragraph)
        if new:
            documents.append(document._replace(text="\n\n".join(new)))
    return documents
