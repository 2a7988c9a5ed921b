"""The text models of checkpoints that see or hear, too: what turns images and sound into embeddings is left out."""

from collections import Counter
from typing import Any

from training.interchange.containers import Tensors
from training.interchange.description import Fields

KINDS = ("gemma3", "gemma4", "gemma4_unified", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe")
"""The `model_type` of the whole; that of the text model is in its ``text_config``."""
TOWERS = (
    *("audio_tower", "embed_audio", "embed_vision", "multi_modal_projector"),
    *("vision_embedder", "vision_model", "vision_tower", "visual"),
)
"""The modules that are left out."""
TEXT = "language_model."
"""The module of the text model, first or behind ``model.``, before the names of a text model's own file."""
OF_ALL = "tie_word_embeddings", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id"
"""Fields of the whole that are also the text model's."""


def text_fields(fields: Fields, state: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of a checkpoint's text model: the whole one, unless it is one of `KINDS`."""
    if state.get("model_type") not in KINDS:
        return state
    return fields.table("text_config") | {name: state[name] for name in OF_ALL if name in state}


def leave_out(tensors: Tensors) -> str:
    """Leave only the text model's tensors, by the names of its own file. Return a note on the others."""
    of_towers: Counter[str] = Counter()

    def renamed(name: str) -> str | None:
        tower = name.removeprefix("model.").partition(".")[0]
        if tower in TOWERS:
            of_towers[name[: name.index(tower) + len(tower)]] += 1
            return None
        return name.replace(TEXT, "", 1)

    tensors.rename(renamed)
    found = ", ".join(f"{name}.* ({n} tensors)" for name, n in of_towers.items()) or "none in these files"
    return f"only the text model is read, without what sees or hears: {found}"
