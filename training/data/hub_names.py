"""Names on the Hugging Face hub: hf:NAME, or hf:NAME@REVISION with a branch, a tag or a commit.

A run that begins with a name records its commit (`pinned`), so that it is the same later; the same command resumes it.
"""

import re
from collections.abc import Callable

HUB = "hf:"
UNREACHABLE = {"ConnectError", "ConnectTimeout", "ConnectionError", "LocalEntryNotFoundError", "gaierror"}
"""Errors of httpx, requests, huggingface_hub and sockets without a connection."""
COMMIT = re.compile(r"[0-9a-f]{40}")
PARTS = re.compile(r"hf:([^:@=]+)(?:@([^:@=]+))?([:=].*)?", re.DOTALL)


def with_revision(written: str, revision: str | None) -> str:
    """Return a name at another revision (None: at none), with the split, the column and the weight behind it.

    Example:
        >>> with_revision("hf:owner/stories:train[:9]", "v2"), with_revision("hf:owner/stories@v2", None)
        ('hf:owner/stories@v2:train[:9]', 'hf:owner/stories')
    """
    found = PARTS.fullmatch(written)
    if found is None:
        return written
    name, _, rest = found.groups()
    return f"{HUB}{name}{'' if revision is None else f'@{revision}'}{rest or ''}"


def revision_of(written: str) -> str | None:
    """Return the revision of a name; None if it has none."""
    found = PARTS.fullmatch(written)
    return found and found[2]


def pinned(written: str, commit_of: Callable[[str], str]) -> str:
    """Return a name at its commit; `commit_of` asks the hub, unless the name has one."""
    if COMMIT.fullmatch(revision_of(written) or ""):
        return written
    return with_revision(written, commit_of(written))


def as_begun(written: str, began: str) -> str:
    """Return the name at the commit that a run began with, if that is what it may mean."""
    is_same = with_revision(written, None) == with_revision(began, None)
    return began if is_same and not COMMIT.fullmatch(revision_of(written) or "") else written


def why_not(error: BaseException) -> str:
    """Return why the hub did not answer: the first line of its error, or that it cannot be reached."""
    at: BaseException | None = error
    while at is not None:
        if UNREACHABLE & {kind.__name__ for kind in type(at).__mro__}:
            return "the hub cannot be reached (no network?)"
        at = at.__cause__ or at.__context__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
