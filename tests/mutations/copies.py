"""Making an edit in a copy of the code, never in the code itself."""

import pathlib
import shutil

from .mutation import Mutation
from .statements import spans

__all__ = ["apply", "edited"]

PACKAGES = ("algorithms", "training")


def apply(mutation: Mutation, root: pathlib.Path, copy: pathlib.Path) -> None:
    """Copy the packages and make an edit in the copy.

    `mutation`: the edit; `root`: the root of the repository; `copy`: the folder that the copies of the packages are
    put into.

    Raises:
        ValueError: if the code to replace does not stand there exactly once.
    """
    text = edited(mutation, root)
    for package in PACKAGES:
        shutil.copytree(root / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / mutation.file).write_text(text, "utf-8")


def edited(mutation: Mutation, root: pathlib.Path) -> str:
    """The text of the file with the edit made.

    Raises:
        ValueError: if the code to replace does not stand there exactly once.
    """
    text = (root / mutation.file).read_text("utf-8")
    found = spans(text, mutation.function, mutation.statement, mutation.old)
    if len(found) != 1:
        raise ValueError(
            f"{mutation.file}, {mutation.function or 'module'}, statement {mutation.statement!r}: expected the code of a "
            f"mutation once, found it {len(found)} times: {mutation.old!r}; bring the mutation up to date"
        )
    first, end = found[0]
    return text[:first] + mutation.new + text[end:]
