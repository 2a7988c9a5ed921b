"""The supported kinds of models, by their `model_type`."""

from training.interchange import (
    deepseek,
    embedding_gemma,
    encoder_decoder,
    encoders,
    gpt_decoders,
    griffin,
    hybrids,
    lfm,
    llada,
    llama4,
    llama_like,
    mamba,
    modernbert,
    torch_transformer,
)

ARCHITECTURES = {
    kind: architecture
    for module in (
        *(gpt_decoders, llama_like, deepseek, hybrids, mamba, griffin, lfm, llama4),
        *(encoders, modernbert, embedding_gemma, llada, encoder_decoder, torch_transformer),
    )
    for kind, architecture in module.KINDS.items()
}
WRITTEN_AS = {
    task: tuple(kind for kind, architecture in ARCHITECTURES.items() if architecture.task == task)
    for task in ("d", "e", "ed")
} | {"classify": ("bert",)}
"""The kinds that each task's parameters can be written as, in the order they are tried."""
