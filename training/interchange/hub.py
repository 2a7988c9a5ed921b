"""Download checkpoints, `hf:NAME`, through huggingface_hub."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from training.disk import local_path
from training.interchange.errors import InterchangeError

HUB = "hf:"
WANTED = ("README.md", "LICENSE*", "*.json", "*.txt", "*.spm", "*.jinja", "*.safetensors")


@contextlib.contextmanager
def downloaded(source: str) -> Iterator[Path]:
    """Yield the path of a checkpoint, downloaded first if `source` is ``hf:`` with a name, as in
    ``hf:openai-community/gpt2``. Raises InterchangeError if huggingface_hub is not installed, or the hub cannot be
    reached, or has no such model.
    """
    yield _download(name_on_hub(source)) if source.startswith(HUB) else local_path(source)


def name_on_hub(source: str) -> str:
    """Return the name of a model on the hub, or raise InterchangeError if it cannot be one."""
    name = source.removeprefix(HUB)
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise InterchangeError(f"{source}: expected {HUB}OWNER/NAME, as in {HUB}openai-community/gpt2")
    return name


def _download(name: str) -> Path:
    try:
        huggingface_hub = importlib.import_module("huggingface_hub")  # an extra
    except ModuleNotFoundError:
        raise InterchangeError(
            f"{HUB}{name} needs huggingface_hub: pip install huggingface_hub, or download the model yourself"
        ) from None
    try:
        path = Path(huggingface_hub.snapshot_download(name, allow_patterns=list(WANTED)))
        if not any(path.glob("*.safetensors")):
            path = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*WANTED, "pytorch_model*.bin"]))
        return path
    except Exception as error:  # anything that the hub or the network raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InterchangeError(
            f"cannot download {name}: is the hub reachable, and does it have this model? It says: {reason}"
        ) from None
