"""Reads variants as earlier versions saved them: as sixteen flags."""

from collections.abc import Mapping
from typing import Any

from algorithms import Variant
from algorithms.lines import MLP, Embedding, LayerNorm, RMSNorm, Unembedding


def lines_from_flags(flags: Mapping[str, Any]) -> Variant:
    """Return the variant that the flags of a config.json describe, or raise KeyError or ValueError if they do not."""
    norm = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}[flags["norm"]]
    return Variant(
        embedding=Embedding(
            positions=flags["positions"],
            first_position=flags["first_position"],
            scaled=flags["scale_embedding"],
            normalized=flags["normalize_embedding"],
            context_positions=flags["context_positions"],
        ),
        norm=norm(epsilon=flags["epsilon"]),
        mlp=MLP(activation=flags["activation"]),
        order="norm_first" if flags["norm_first"] else None,
        final_norm=flags["final_norm"] or None,
        unembedding=Unembedding(tied=flags["tied"], bias=flags["unembedding_bias"]),
        head=flags["head"],
        pooler=flags["pooler"],
    )
