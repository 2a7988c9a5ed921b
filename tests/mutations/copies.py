"""Making an edit in a copy of the code, never in the code itself."""

import pathlib
import shutil

from .mutation import Mutation

__all__ = ["apply", "edited"]


def apply(mutation: Mutation, root: pathlib.Path, copy: pathlib.Path) -> None:
    """Copy the package `algorithms` and make an edit in the copy.

    Args:
        mutation: the edit.
        root: the root of the repository.
        copy: the folder that the copy of the package is put into.

    Raises:
        ValueError: if the text to replace does not stand there exactly once.
    """
    text = edited(mutation, root)
    shutil.copytree(root / "algorithms", copy / "algorithms", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "algorithms" / mutation.file).write_text(text, "utf-8")


def edited(mutation: Mutation, root: pathlib.Path) -> str:
    """The text of the file with the edit made.

    Raises:
        ValueError: if the text to replace does not stand there exactly once.
    """
    text = (root / "algorithms" / mutation.file).read_text("utf-8")
    if text.count(mutation.old) != 1:
        raise ValueError(
            f"{mutation.file}: expected the text of a mutation once, found it {text.count(mutation.old)} times: "
            f"{mutation.old!r}; bring the mutation up to date"
        )
    return text.replace(mutation.old, mutation.new)
