"""The license of a checkpoint, as its own files state it."""

from pathlib import Path

from training.disk import read_text
from training.interchange.gguf_models import GGUFTensors

CARD = "README.md"
"""The model card, which begins with YAML fields between two lines of dashes."""
MOST = 60  # characters


def license_of(path: Path, tensors: object) -> str:
    """Return the license of a checkpoint in a directory or GGUF file, or a note that it states none."""
    in_gguf = isinstance(tensors, GGUFTensors)
    said = tensors.file.metadata.get("general.license") if in_gguf else _of_card(path / CARD)
    if isinstance(said, str) and said.strip():
        return f"license: {said.strip()[:MOST]}"
    texts = [] if in_gguf else sorted(file.name for file in path.glob("LICENSE*"))
    return f"license: see its file {texts[0]}" if texts else "license: not stated in its files"


def _of_card(card: Path) -> str | None:
    """Return the field `license_name`, which accompanies the license "other", or else the field `license`."""
    if not card.is_file():
        return None
    try:
        lines = read_text(card).splitlines()
    except (OSError, ValueError):  # the model can be used without its card
        return None
    if not lines or lines[0].strip() != "---":
        return None
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)
    fields = dict(line.split(":", 1) for line in lines[1:end] if ":" in line and not line.startswith((" ", "-")))
    found = {name: fields.get(name, "").strip().strip("'\"") for name in ("license", "license_name")}
    return found["license_name"] or found["license"] or None
