"""The supported kinds of models, by their `model_type`."""

from training.interchange import decoders, deepseek, encoders, gpt_decoders, t5, torch_transformer
from training.interchange.description import Architecture
from training.interchange.encoder_decoder import VARIANTS, architecture

ARCHITECTURES: dict[str, Architecture] = {
    **{kind: gpt_decoders.architecture(kind) for kind in gpt_decoders.KINDS},
    **{kind: decoders.architecture(kind) for kind in decoders.FAMILIES},
    **{kind: deepseek.architecture(kind) for kind in deepseek.KINDS},
    **{kind: encoders.architecture(kind) for kind in encoders.KINDS},
    **{kind: architecture(kind) for kind in VARIANTS},
    "t5": t5.ARCHITECTURE,
    torch_transformer.NAME: torch_transformer.ARCHITECTURE,
}

WRITTEN_AS = {
    "d": (*gpt_decoders.KINDS, *decoders.FAMILIES, *deepseek.KINDS),
    "e": tuple(encoders.KINDS),
    "classify": ("bert",),
    "ed": (*VARIANTS, "t5", torch_transformer.NAME),
}
"""The kinds that each task's parameters can be written as, in the order they are tried."""
