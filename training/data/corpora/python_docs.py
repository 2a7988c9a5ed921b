"""The offline corpus: the English documentation that comes with every Python.

The help topics of `pydoc_data.topics` and the docstrings of the standard library's modules, classes and functions, read
from their source without importing it. Repeated paragraphs are kept only at their first occurrence.
"""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from training.data.records import Document, hash64, normalized, paragraphs

# Installed packages, tests and programs, which do not document the library.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _docstrings(node: Documented, name: str) -> Iterator[Document]:
    """Yield the docstrings of a module and of the classes and functions in it, in source order."""
    text = ast.get_docstring(node)
    if text:
        yield Document(text, name)
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child, f"{name}.{child.name}")


def _sources() -> Iterator[Document]:
    for name, text in sorted(topics.items()):
        yield Document(text, f"help({name!r})")
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(path.relative_to(root) for path in root.rglob("*.py")):
        if LEFT_OUT & set(file.parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about the library's source do not concern the user
                tree = ast.parse((root / file).read_bytes())
        except (SyntaxError, ValueError):  # templates, and files that are broken on purpose
            continue
        yield from _docstrings(tree, ".".join(file.with_suffix("").parts).removesuffix(".__init__"))


def documentation() -> list[Document]:
    """Return help topics and docstrings without repeated paragraphs; the same in every run of the same Python."""
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
