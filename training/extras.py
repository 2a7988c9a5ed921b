"""The project's extras: sets of optional libraries."""

import importlib
import re
import tomllib
from importlib import metadata
from pathlib import Path

PROJECT = "formal-algorithms"
EXTRAS = {
    **dict.fromkeys(("h11", "prometheus_client", "psutil", "pydantic", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(("jinja2", "latex2mathml", "markupsafe", "pygments", "rich"), "book"),
    **dict.fromkeys(("filelock", "matplotlib", "orbax", "safetensors", "tabulate", "tokenizers", "tqdm"), "train"),
    "wandb": "wandb",
}
"""Package that only some commands need → the extra of pyproject.toml that installs it."""


def install(extra: str) -> str:
    """Return the command that installs an extra: from the checkout that runs, or else its packages, as from a wheel."""
    root = Path(__file__).parents[1]
    if (root / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if Path.cwd() == root else root}[{extra}]'"
    needs = [need.replace('"', "'").partition(";") for need in metadata.requires(PROJECT) or ()]
    return " ".join(["pip install", *(f"'{need.strip()}'" for need, _, when in needs if f"'{extra}'" in when)])


def import_early(*modules: str) -> None:
    """Import what a command needs after slow work, or raise ModuleNotFoundError with the command that installs it."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            if package not in EXTRAS:
                raise
            raise ModuleNotFoundError(f"{package} is not installed: {install(EXTRAS[package])}") from None


def release() -> str:
    """Return the version of the project: of what is installed, or else of the checkout that runs."""
    try:
        return metadata.version(PROJECT)
    except metadata.PackageNotFoundError:
        about = (Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8")
        return tomllib.loads(about)["project"]["version"]


def unsafe(package: str, *, least: str, because: str) -> str | None:
    """Return what is wrong with a package older than `least`, the first without a known hole, or None."""
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        found = "0"  # with no metadata, nothing shows that it is new enough
    if _release(found) >= _release(least):
        return None
    return f"expected {package} {least} or later, got {found}, {because}; pip install -U {package}"


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what follows them, as in ``2.6.0+cpu``."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))
