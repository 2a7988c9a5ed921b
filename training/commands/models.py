"""The models that command lines name."""

from pathlib import Path

from training.commands.terminal import Bar, say
from training.interchange.names import as_run


def run_of(name: str, cache: Path | None = None) -> Path:
    """Return the directory of the run that a name means, as `as_run` does, and show what is converted."""
    with Bar("reading") as bar:
        return as_run(name, cache_dir=cache, say=say, progress=bar.advance)
