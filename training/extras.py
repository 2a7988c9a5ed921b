"""The project's extras: sets of optional libraries."""

from importlib import metadata
from pathlib import Path

PROJECT = "formal-algorithms"


def install(extra: str) -> str:
    """Return the command that installs an extra: by name where the project is installed, as from a wheel or by
    ``pip install -e .``, and otherwise from the checkout that runs.

    Example:
        >>> install("data").startswith("pip install ")
        True
    """
    try:
        metadata.version(PROJECT)
        return f"pip install '{PROJECT}[{extra}]'"
    except metadata.PackageNotFoundError:
        return f"pip install -e '{Path(__file__).parents[1]}[{extra}]'"
