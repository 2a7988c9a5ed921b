"""Checkpoints of a hub, `hf:NAME`, through huggingface_hub."""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path

from training.interchange.errors import InterchangeError

HUB = "hf:"
WANTED = ("README.md", "LICENSE*", "*.json", "*.txt", "*.spm", "*.jinja", "*.safetensors")


@contextlib.contextmanager
def downloaded(source: str) -> Iterator[Path]:
    """Give the directory of a checkpoint, downloaded where it is ``hf:`` and a name such as ``openai-community/gpt2``.
    Raises InterchangeError if huggingface_hub is not installed, the hub cannot be reached, or has no such model.
    """
    yield _download(source.removeprefix(HUB)) if source.startswith(HUB) else Path(source)


def _download(name: str) -> Path:
    try:
        huggingface_hub = importlib.import_module("huggingface_hub")  # an extra
    except ModuleNotFoundError:
        raise InterchangeError(
            f"{HUB}{name} needs huggingface_hub: pip install huggingface_hub, or download the model by hand"
        ) from None
    try:
        path = Path(huggingface_hub.snapshot_download(name, allow_patterns=list(WANTED)))
        if not any(path.glob("*.safetensors")):
            path = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*WANTED, "pytorch_model*.bin"]))
        return path
    except Exception as error:  # whatever the hub or the network raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InterchangeError(
            f"cannot download {name}: is the hub reachable, and is there a model of this name? It says: {reason}"
        ) from None
