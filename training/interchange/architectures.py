"""The supported kinds of models, by their `model_type`."""

from training.interchange import (
    decoders,
    deepseek,
    embedding_gemma,
    encoder_decoder,
    encoders,
    gpt_decoders,
    granite,
    griffin,
    hybrids,
    kimi,
    llama4,
    modernbert,
    olmo_hybrid,
    torch_transformer,
)

ARCHITECTURES = {
    **gpt_decoders.KINDS,
    **decoders.KINDS,
    **deepseek.KINDS,
    **hybrids.KINDS,
    **granite.KINDS,
    **griffin.KINDS,
    **kimi.KINDS,
    **llama4.KINDS,
    **olmo_hybrid.KINDS,
    **embedding_gemma.KINDS,
    **encoders.ARCHITECTURES,
    **modernbert.KINDS,
    **encoder_decoder.KINDS,
    torch_transformer.NAME: torch_transformer.ARCHITECTURE,
}

WRITTEN_AS = {
    "d": (
        *(*gpt_decoders.KINDS, *decoders.KINDS, *deepseek.KINDS),
        *(*hybrids.KINDS, *granite.KINDS, *griffin.KINDS, *kimi.KINDS, *llama4.KINDS, *olmo_hybrid.KINDS),
    ),
    "e": (*encoders.ARCHITECTURES, *modernbert.KINDS, *embedding_gemma.KINDS),
    "classify": ("bert",),
    "ed": (*encoder_decoder.KINDS, torch_transformer.NAME),
}
"""The kinds that each task's parameters can be written as, in the order they are tried."""
