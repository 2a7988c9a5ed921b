"""Download checkpoints, `hf:NAME` or `hf:NAME@REVISION`, through huggingface_hub."""

import importlib
import re
from pathlib import Path

from training.data.hub_names import HUB, revision_of, why_not, with_revision
from training.disk import local_path
from training.interchange.errors import InterchangeError

WANTED = ("README.md", "LICENSE*", "*.json", "*.txt", "*.spm", "*.jinja", "*.safetensors")


def downloaded(source: str) -> Path:
    """Return the path of a checkpoint, downloaded first if `source` is ``hf:`` with a name, as in
    ``hf:openai-community/gpt2``. Raises InterchangeError if huggingface_hub is not installed, or the hub cannot be
    reached, or has no such model.
    """
    return _download(name_on_hub(source), revision_of(source)) if source.startswith(HUB) else local_path(source)


def name_on_hub(source: str) -> str:
    """Return the name of a model on the hub, or raise InterchangeError if it cannot be one."""
    name = with_revision(source, None).removeprefix(HUB)
    if not re.fullmatch(r"hf:\w[\w.-]*(/\w[\w.-]*)?(@\w[\w./-]*)?", source):
        raise InterchangeError(
            f"{source}: expected {HUB}OWNER/NAME or {HUB}OWNER/NAME@REVISION, as in {HUB}openai-community/gpt2"
        )
    return name


def origin_of(source: str, path: Path) -> str:
    """Return the name on the hub, and the commit, of what was downloaded to a path; "" if `source` is a path."""
    if not source.startswith(HUB):
        return ""
    return with_revision(source, path.name if path.parent.name == "snapshots" else revision_of(source))


def _download(name: str, revision: str | None) -> Path:
    try:
        huggingface_hub = importlib.import_module("huggingface_hub")  # an extra
    except ModuleNotFoundError:
        raise InterchangeError(
            f"{HUB}{name} needs huggingface_hub: pip install huggingface_hub, or download the model yourself"
        ) from None
    try:
        path = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
        if not any(path.glob("*.safetensors")):
            wanted = [*WANTED, "pytorch_model*.bin"]
            path = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=wanted))
        return path
    except Exception as error:  # anything that the hub or the network raises
        written = with_revision(f"{HUB}{name}", revision).removeprefix(HUB)
        raise InterchangeError(f"cannot download {written}: {why_not(error)}") from None
