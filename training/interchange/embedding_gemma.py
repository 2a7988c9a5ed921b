"""EmbeddingGemma: Gemma 3 whose tokens attend both ways, as a bare Algorithm 9 with changed lines."""

from collections.abc import Sequence
from typing import Any

from training.interchange import llama_like
from training.interchange.description import Architecture, Fields, Model, unlike, written
from training.interchange.rotary import SLIDING

KIND = "embedding_gemma"
"""Name of the kind; its files have Gemma 3's model_type, and ``use_bidirectional_attention``."""
OF = llama_like.KINDS["gemma3_text"]
BARE = "Gemma3TextModel"


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    named = fields.first("architectures") or BARE
    if named != BARE:
        fields.needs.append(f"the head of {named} in an encoder")
    window = found[f"{SLIDING}.window"]
    found |= {f"{SLIDING}.window": window and window // 2 + 1, "unembedding.tied": True}


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    window = state["sliding_window"]
    state["sliding_window"] = OF.lines[SLIDING].window if window is None else 2 * (window - 1)
    return unlike(model.task, "e", "classifier") + unlike(model.config.N_types, 0, "token types")


def _tensors() -> dict[str, str]:
    """Return Gemma 3's tensors without its prefix and its head; its last norm follows the layers of an encoder."""
    table: Any = {name.removeprefix("model."): ours for name, ours in OF.tensors.items() if ours != "W_u"}
    return table | {"norm.*": "encoder_norm.*"}


KINDS = {
    KIND: Architecture(
        "e",
        KIND,
        OF.variant.but(order="norm_first", final_norm=True, head=False),
        [
            *(field for field in OF.fields if getattr(field, "name", "") != "use_bidirectional_attention"),
            *written(architectures=[BARE], use_bidirectional_attention=True),
        ],
        _tensors(),
        _read,
        _write,
        prefix="model.",
        lines=OF.lines,
        layers=OF.layers,
    )
}


def kind_of(state: dict[str, Any]) -> Any:
    """Return the kind of a checkpoint by its config.json: the model_type, unless it is an EmbeddingGemma."""
    name = state.get("model_type")
    return KIND if name == OF.kind and state.get("use_bidirectional_attention") else name
