"""The unsupported features that well-known kinds of models need, by `model_type`."""

EXPERTS = "a mixture of experts"
STATE_SPACE = "a state-space layer instead of attention"
RELATIVE = "relative positions"
ONE_NORM = "one norm for attention and MLP side by side"
ONE_TENSOR = "queries, keys and values in one tensor"
AFTER_PADDING = "positions that start after the padding token, and a different masked-token head"

_KINDS = {
    "a head that detects replaced tokens, and an embedding size that differs from that of the layers": "electra",
    "a mapping of its tensors, which is not written yet, although its lines are supported": "deepseek2 mt5 stablelm",
    "an embedding size that differs from that of the layers": "rembert",
    "logits one token late in masked diffusion": "dream",
    "normalized values, keys and values shared by layers, and embeddings of every layer": "gemma3n_text gemma4_text",
    "an encoder and a decoder that normalize before each step": "blenderbot m2m_100 mbart pegasus",
    "an encoder that normalizes before each step": "megatron-bert",
    "attention by locality-sensitive hashing": "reformer",
    "block-sparse attention": "big_bird",
    "bottleneck layers": "mobilebert",
    "disentangled attention to contents and positions": "deberta deberta-v2",
    "embeddings of several widths, and a memory of earlier segments": "transfo-xl",
    "images as input": "clip gemma3 llama4 vit",
    "language embeddings": "xlm",
    "layers that pool their sequence": "funnel",
    "learned positions that start at 2 in a decoder, and scaled embeddings": "biogpt",
    "recurrent layers instead of attention": "rwkv",
    "separate relative positions in every layer": "umt5",
    "sinusoidal positions in a decoder, and control tokens": "ctrl",
    "sinusoidal positions that start at 2 in a decoder": "xglm",
    "sound as input": "wav2vec2 whisper",
    "task type embeddings": "ernie",
    "windowed attention": "led longformer longt5",
    AFTER_PADDING: "camembert xlm-roberta",
    EXPERTS: "dbrx nllb-moe switch_transformers",
    ONE_NORM: "codegen gptj phi",
    f"{ONE_NORM}, and a scale factor of the logits": "cohere",
    ONE_TENSOR: "falcon gpt_bigcode mpt nomic_bert persimmon",
    f"{ONE_TENSOR}, and rotary positions scaled for long contexts": "phi3",
    f"{RELATIVE}, a memory of earlier segments, and two-stream attention": "xlnet",
    f"{RELATIVE}, and {AFTER_PADDING}": "mpnet",
    STATE_SPACE: "falcon_mamba mamba mamba2",
    f"{STATE_SPACE}, and {EXPERTS}": "jamba",
}
NEEDS = {kind: need for need, kinds in _KINDS.items() for kind in kinds.split()}
