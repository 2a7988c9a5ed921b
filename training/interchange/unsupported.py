"""What well-known kinds of models need that is not supported, by `model_type`."""

MAMBA = "Mamba's first recurrence, with a rate for each row"
LONG_ROPE = "rotary positions scaled by LongRoPE"

_KINDS = {
    "a mapping of its tensors, which is not written yet, although its lines are supported": """
        biogpt blenderbot camembert codegen cohere ctrl dbrx falcon gpt_bigcode gptj mamba2 mbart megatron-bert mpnet
        mpt mt5 nomic_bert pegasus phi stablelm xlm-roberta
    """,
    "a head that detects replaced tokens": "electra",
    "an output embedding of another size than the input's": "rembert",
    "logits one token late in masked diffusion": "dream",
    "several residual streams, low-rank sums beside attention, and sparse activations": "gemma3n_text",
    "attention by locality-sensitive hashing": "reformer",
    "block-sparse attention": "big_bird",
    "bottleneck layers": "mobilebert",
    "disentangled attention to contents and positions": "deberta deberta-v2",
    "embeddings of several widths, and a memory of earlier segments": "transfo-xl",
    "images as input": "clip vit",
    "language embeddings": "xlm",
    "layers that pool their sequence": "funnel",
    "norms of queries and keys with β": "persimmon",
    "RWKV's recurrence": "rwkv",
    "separate relative positions in every layer": "umt5",
    "sinusoidal positions with other frequencies": "m2m_100 xglm",
    "sound as input": "wav2vec2 whisper",
    "task type embeddings": "ernie",
    "tokens that attend to all others beside windows": "led longformer longt5",
    "a memory of earlier segments, and two-stream attention": "xlnet",
    "experts in an encoder and a decoder": "nllb-moe switch_transformers",
    LONG_ROPE: "phi3",
    MAMBA: "falcon_mamba jamba mamba",
}
NEEDS = {kind: need for need, kinds in _KINDS.items() for kind in kinds.split()}
