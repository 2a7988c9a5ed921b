"""The settings of known models, for `train.py --preset`."""

from typing import Any

LLAMA_SIZES: dict[str, dict[str, Any]] = {
    "llama-15m": {"L": 6, "H": 6, "d_e": 288, "d_mlp": 768, "l_max": 256}
    | {"batch_size": 128, "learning_rate": 1e-3, "steps": 100_000},
    "llama-110m": {"L": 12, "H": 12, "d_e": 768, "d_mlp": 2048, "l_max": 1024}
    | {"batch_size": 256, "accumulation_steps": 8, "learning_rate": 6e-4, "steps": 200_000},
    "llama-1b": {"L": 22, "H": 32, "H_kv": 4, "d_e": 2048, "d_mlp": 5632, "l_max": 2048}
    | {"batch_size": 1024, "accumulation_steps": 64, "learning_rate": 4e-4, "steps": 480_000},
}
"""Llama at three sizes: two of llama2.c's, and TinyLlama's, with grouped-query attention."""
ADAMW = {"optimizer": "adamw", "schedule": "cosine", "warmup": 2000, "final_fraction": 0.1, "beta2": 0.95, "eps": 1e-8}
"""The usual optimizer of language models since GPT-3."""
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "demo": (
        "d",
        {"variant": "OLMO2", "d_mlp": 344, "steps": 2000, "batch_size": 4}
        | {"learning_rate": 1e-2, "embedding_learning_rate": 3e-2, "eval_every": 500, "checkpoint_every": 400},
    ),
    "gpt2-124m": (
        "d",
        {"variant": "GPT2", "N_V": 50260, "l_max": 1024, "L": 12, "H": 12, "d_e": 768, "d_mlp": 3072}
        | {"steps": 600_000, "batch_size": 480, "accumulation_steps": 40, "learning_rate": 6e-4}
        | {**ADAMW, "dtype": "bfloat16"},
    ),
    **{
        name: (
            "d",
            {"variant": "LLAMA", "tokenizer": "bpe", "N_V": 32_000, "init": "gpt2", **ADAMW, "dtype": "bfloat16"}
            | sizes,
        )
        for name, sizes in LLAMA_SIZES.items()
    },
    "vaswani-base": (
        "ed",
        {"variant": "VASWANI", "tokenizer": "bpe", "N_V": 37000, "l_max": 256}
        | {"L_enc": 6, "L_dec": 6, "H": 8, "d_e": 512, "d_mlp": 2048, "dropout": 0.1, "label_smoothing": 0.1}
        | {"steps": 100_000, "batch_size": 512, "optimizer": "adam", "schedule": "vaswani", "clip_norm": 0.0},
    ),
    "bert-base": (
        "e",
        {"variant": "BERT", "tokenizer": "bpe", "N_V": 30522, "masking": "bert", "l_max": 512}
        | {"L": 12, "H": 12, "d_e": 768, "d_mlp": 3072, "init": "gpt2", "dropout": 0.1}
        | {"steps": 1_000_000, "batch_size": 256, "optimizer": "adamw", "schedule": "linear", "learning_rate": 1e-4}
        | {"warmup": 10_000, "final_fraction": 0.0, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01},
    ),
}
"""Name → task and settings: this project's demo, and published models."""
