"""The unsupported features that well-known kinds of models need, by `model_type`."""

EXPERTS = "a mixture of experts"
UNMAPPED = "a mapping of its tensors, which is not written yet, although its lines are supported"
STATE_SPACE = "a state-space layer instead of attention"
RELATIVE = "relative positions"
ONE_NORM = "one norm for attention and MLP side by side"
ONE_TENSOR = "queries, keys and values in one tensor"
AFTER_PADDING = "positions that start after the padding token, and a different masked-token head"
IMAGES = "images as input"
SOUND = "sound as input"

NEEDS = {
    "big_bird": "block-sparse attention",
    "biogpt": "learned positions that start at 2 in a decoder, and scaled embeddings",
    "blenderbot": "an encoder and a decoder that normalize before each step",
    "camembert": AFTER_PADDING,
    "clip": IMAGES,
    "codegen": ONE_NORM,
    "cohere": f"{ONE_NORM}, and a scale factor of the logits",
    "ctrl": "sinusoidal positions in a decoder, and control tokens",
    "dbrx": EXPERTS,
    "deepseek2": UNMAPPED,
    "deberta": "disentangled attention to contents and positions",
    "deberta-v2": "disentangled attention to contents and positions",
    "electra": "a head that detects replaced tokens, and an embedding size that differs from that of the layers",
    "ernie": "task type embeddings",
    "falcon": ONE_TENSOR,
    "falcon_mamba": STATE_SPACE,
    "funnel": "layers that pool their sequence",
    "gemma3": IMAGES,
    "gpt_bigcode": ONE_TENSOR,
    "gptj": ONE_NORM,
    "granite": "scale factors of the embedding, the residual connections and the logits",
    "jamba": f"{STATE_SPACE}, and {EXPERTS}",
    "led": "windowed attention",
    "longformer": "windowed attention",
    "longt5": "windowed attention",
    "m2m_100": "an encoder and a decoder that normalize before each step",
    "mamba": STATE_SPACE,
    "mamba2": STATE_SPACE,
    "mbart": "an encoder and a decoder that normalize before each step",
    "megatron-bert": "an encoder that normalizes before each step",
    "mobilebert": "bottleneck layers",
    "modernbert": UNMAPPED,
    "mpnet": f"{RELATIVE}, and {AFTER_PADDING}",
    "mpt": ONE_TENSOR,
    "mt5": UNMAPPED,
    "nllb-moe": EXPERTS,
    "nomic_bert": ONE_TENSOR,
    "olmo": "norms without parameters",
    "pegasus": "an encoder and a decoder that normalize before each step",
    "persimmon": ONE_TENSOR,
    "phi": ONE_NORM,
    "phi3": f"{ONE_TENSOR}, and rotary positions scaled for long contexts",
    "qwen2_moe": EXPERTS,
    "recurrent_gemma": "recurrent layers instead of attention",
    "reformer": "attention by locality-sensitive hashing",
    "rembert": "an embedding size that differs from that of the layers",
    "rwkv": "recurrent layers instead of attention",
    "stablelm": UNMAPPED,
    "starcoder2": UNMAPPED,
    "switch_transformers": EXPERTS,
    "transfo-xl": "embeddings of several widths, and a memory of earlier segments",
    "umt5": "separate relative positions in every layer",
    "vit": IMAGES,
    "wav2vec2": SOUND,
    "whisper": SOUND,
    "xglm": "sinusoidal positions that start at 2 in a decoder",
    "xlm": "language embeddings",
    "xlm-roberta": AFTER_PADDING,
    "xlnet": f"{RELATIVE}, a memory of earlier segments, and two-stream attention",
}
