"""Under which license a checkpoint is, as its own files say it: nobody else knows."""

from pathlib import Path

from training.disk import read_text
from training.interchange.gguf_models import GGUFTensors

CARD = "README.md"
"""The model's card, which begins with fields of YAML between two lines of dashes."""
MOST = 60  # characters


def license_of(path: Path, tensors: object) -> str:
    """Return the license of a checkpoint, or a note that its files do not say.

    Args:
        path: its directory, or its file of GGUF.
        tensors: what was opened there.
    """
    in_gguf = isinstance(tensors, GGUFTensors)
    said = tensors.file.metadata.get("general.license") if in_gguf else _of_card(path / CARD)
    if isinstance(said, str) and said.strip():
        return f"license: {said.strip()[:MOST]}"
    texts = [] if in_gguf else sorted(file.name for file in path.glob("LICENSE*"))
    return f"license: that of its file {texts[0]}" if texts else "its files do not say under which license it is"


def _of_card(card: Path) -> str | None:
    """The field `license`, or the name that goes with "other"."""
    if not card.is_file():
        return None
    try:
        lines = read_text(card).splitlines()
    except (OSError, ValueError):  # which nobody needs to read a model
        return None
    if not lines or lines[0].strip() != "---":
        return None
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)
    fields = dict(line.split(":", 1) for line in lines[1:end] if ":" in line and not line.startswith((" ", "-")))
    found = {name: fields.get(name, "").strip().strip("'\"") for name in ("license", "license_name")}
    return found["license_name"] or found["license"] or None
