"""The supported kinds of models, by their `model_type`."""

from training.interchange import (
    deepseek,
    encoder_decoder,
    encoders,
    encoders_of_decoders,
    gated,
    gemma4,
    gpt_decoders,
    hybrids,
    llama4,
    llama_like,
    mamba,
    torch_transformer,
)

ARCHITECTURES = {
    kind: architecture
    for module in (
        *(gpt_decoders, llama_like, deepseek, gemma4, hybrids, mamba, gated, llama4),
        *(encoders, encoders_of_decoders, encoder_decoder, torch_transformer),
    )
    for kind, architecture in module.KINDS.items()
}
WRITTEN_AS = {
    task: tuple(kind for kind, architecture in ARCHITECTURES.items() if architecture.task == task)
    for task in ("d", "e", "ed")
} | {"classify": ("bert",)}
"""The kinds that each task's parameters can be written as, in the order they are tried."""
