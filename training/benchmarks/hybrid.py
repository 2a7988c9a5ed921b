"""A hybrid, with three delta rules to an attention, beside attention alone with as many parameters."""

from typing import Any

import jax

from algorithms import DTransformerConfig, Variant, init_d_transformer
from algorithms.lines import MLP, Attention, Embedding, GatedDelta, RMSNorm, Rotary
from training.benchmarks import decode, training_step
from training.benchmarks.timing import alternate, table
from training.mesh.cpu import keep_memory

SIZES = {"N_V": 2048, "L": 4, "H": 4, "d_e": 128}
LINES: dict[str, Any] = {
    "embedding": Embedding(positions=None),
    "norm": RMSNorm(epsilon=1e-5),
    "mlp": MLP(activation="silu", gated=True, biases=False),
}
DELTA = GatedDelta(n=4, n_keys=4, d_key=32, d_value=32)
GATED = Attention(positions=Rotary(), biases=False, gated=True)
MODELS = {
    "hybrid": {"variant": Variant(**LINES, attention=(DELTA, DELTA, DELTA, GATED)), "d_mlp": 384},
    "attention": {"variant": Variant(**LINES, attention=Attention(positions=Rotary(), biases=False)), "d_mlp": 432},
}
"""What docs/examples/hybrid.json and attention.json train."""
ROWS = (8, 512), (1, 4096)  # sequences of a step, and their tokens
CONTEXTS = 1000, 16000
DECODED = 32


def run(rounds: int) -> str:
    """Return a table of training steps and of decoding, made in a process that keeps freed memory, as ``train.py``."""
    keep_memory()
    training, decoding = {}, {}
    for name, sizes in MODELS.items():
        for B, l in ROWS:
            training[f"{name} {B}"] = training_step.steps(DTransformerConfig(**SIZES, **sizes, l_max=l), B)
        model = decode.generator(DTransformerConfig(**SIZES, **sizes, l_max=max(CONTEXTS)))
        decoding |= {f"{name} {context}": decode.steps_at(model, 1, context, DECODED) for context in CONTEXTS}
    step, decoded = alternate(training, rounds), alternate(decoding, rounds)
    rows = []
    for name, sizes in MODELS.items():
        theta = init_d_transformer(jax.random.key(0), DTransformerConfig(**SIZES, **sizes, l_max=8))
        n = sum(leaf.size for leaf in jax.tree.leaves(theta))
        seconds = [f"{step[f'{name} {B}'].median:.2f}" for B, _ in ROWS]
        rows.append([name, f"{n:,}", *seconds, *(f"{DECODED / decoded[f'{name} {c}'].median:.0f}" for c in CONTEXTS)])
    header = ["", "parameters", *(f"s a step of {B} x {l}" for B, l in ROWS)]
    header += [f"decoded tokens/s after {context:,}" for context in CONTEXTS]
    return f"float32, AdamW; decoding at batch 1.\n\n{table(header, rows)}"
