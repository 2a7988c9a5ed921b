"""The kinds of models that can be read and written, by their `model_type`."""

from training.interchange import bert, gpt2, torch_transformer
from training.interchange.description import Architecture
from training.interchange.encoder_decoder import VARIANTS, architecture

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": gpt2.ARCHITECTURE,
    "bert": bert.ARCHITECTURE,
    **{kind: architecture(kind) for kind in VARIANTS},
    torch_transformer.NAME: torch_transformer.ARCHITECTURE,
}

_LLAMAS = "rotary positions, a gated MLP (SwiGLU), RMSnorm before linear maps without biases"
NEEDS = {
    "llama": f"{_LLAMAS}, and keys and values that several heads share",
    "mistral": f"{_LLAMAS}, keys and values that several heads share, and attention in a window",
    "t5": "RMSnorm, relative positions, and scores that are not divided by √d_attn",
    "roberta": "positions that begin behind the padding token, and another masked-token head",
}
"""What some other kinds need that this library does not have."""

WRITTEN_AS = {"d": ("gpt2",), "e": ("bert",), "classify": ("bert",), "ed": (*VARIANTS, torch_transformer.NAME)}
"""The kinds as which the parameters of a task may be written, the likeliest first."""
