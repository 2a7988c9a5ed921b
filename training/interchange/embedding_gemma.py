"""EmbeddingGemma: Gemma 3 whose tokens attend both ways, as a bare Algorithm 9 with changed lines."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import Embedding
from algorithms.model.variants import PAPER
from training.interchange import decoders
from training.interchange.description import Architecture, Fields, Model, unlike, written

KIND = "embedding_gemma"
"""As which it is written; its files have Gemma 3's model_type, and ``use_bidirectional_attention``."""
OF = decoders.KINDS["gemma3_text"]
BARE = "Gemma3TextModel"


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    named = fields.first("architectures") or BARE
    if named != BARE:
        fields.needs.append(f"the head of {named} in an encoder")
    OF.read(fields, found, names, OF.kind)
    lines = (line.but(window=line.window and line.window // 2 + 1) for line in found["attention"])
    found |= {"attention": tuple(lines), "unembedding.tied": True}


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    lacks = OF.write(model, state, OF.kind)
    window = state["sliding_window"]
    state["sliding_window"] = decoders.FAMILIES[OF.kind].window if window is None else 2 * (window - 1)
    return lacks + unlike(model.task, "e", "classifier") + unlike(model.config.N_types, 0, "token types")


def _tensors() -> dict[str, str]:
    """Return Gemma 3's tensors without its prefix and its head; its last norm follows the layers of an encoder."""
    table: Any = {name.removeprefix("model."): ours for name, ours in OF.tensors.items() if ours != "W_u"}
    return table | {"norm.*": "encoder_norm.*"}


KINDS = {
    KIND: Architecture(
        "e",
        KIND,
        PAPER.but(embedding=Embedding(positions=None, scaled=True), order="norm_first", final_norm=True, head=False),
        [
            *(field for field in OF.fields if getattr(field, "name", "") != "use_bidirectional_attention"),
            *written(architectures=[BARE], use_bidirectional_attention=True),
        ],
        _tensors(),
        _read,
        _write,
        prefix="model.",
    )
}


def kind_of(state: dict[str, Any]) -> Any:
    """Return the kind of a checkpoint by its config.json: the model_type, unless it is an EmbeddingGemma."""
    name = state.get("model_type")
    return KIND if name == OF.kind and state.get("use_bidirectional_attention") else name
