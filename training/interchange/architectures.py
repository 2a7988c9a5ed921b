"""The supported kinds of models, by their `model_type`."""

from training.interchange import (
    deepseek,
    embedding_gemma,
    encoder_decoder,
    encoders,
    falcon,
    gpt_decoders,
    granite,
    griffin,
    hybrids,
    lfm,
    llada,
    llama4,
    llama_like,
    modernbert,
    nemotron,
    torch_transformer,
)

ARCHITECTURES = {
    kind: architecture
    for module in (
        *(gpt_decoders, llama_like, deepseek, hybrids, falcon, granite, griffin, lfm, llama4, nemotron),
        *(encoders, modernbert, embedding_gemma, llada, encoder_decoder, torch_transformer),
    )
    for kind, architecture in module.KINDS.items()
}
WRITTEN_AS = {
    task: tuple(kind for kind, architecture in ARCHITECTURES.items() if architecture.task == task)
    for task in ("d", "e", "ed")
} | {"classify": ("bert",)}
"""The kinds that each task's parameters can be written as, in the order they are tried."""
