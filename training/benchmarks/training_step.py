"""A full training step of Algorithm 10 with AdamW, compared with Hugging Face's GPT-2 in PyTorch of the same sizes."""

import functools
import importlib.util
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from algorithms import GPT2, PAPER, DTransformerConfig, Variant, d_hidden_state, init_d_transformer, log_loss
from algorithms.notation import Implementation
from training.benchmarks import reference
from training.benchmarks.timing import (
    alternate,
    pytorch,
    pytorch_device,
    table,
    temporary_bytes,
)
from training.loop.cost import matmul_peak
from training.mesh.cpu import keep_memory

SIZES: dict[str, Any] = {"N_V": 256, "l_max": 256, "L": 6, "H": 8, "d_e": 256, "d_mlp": 1024}
BATCH = 8


def run(rounds: int) -> str:
    """Return the measurements as a Markdown table, made in a process that keeps freed memory, as ``train.py`` does."""
    keep_memory()
    candidates = {
        "printed lines, jax.grad (PAPER)": _ours(PAPER, "paper"),
        "hand-derived (PAPER: GELU by erf)": _ours(PAPER, "auto"),
        "hand-derived (GPT2: GELU by tanh)": _ours(GPT2, "auto"),
        "the same with unrolled layers": _ours(GPT2, "auto", unroll=True),
        "the same in bfloat16": _ours(GPT2, "auto", jnp.bfloat16),
        "the same in bfloat16 with unrolled layers": _ours(GPT2, "auto", jnp.bfloat16, unroll=True),
    }
    if (theirs := hugging_face(SIZES, BATCH)) is not None:
        candidates["Hugging Face GPT-2, PyTorch SDPA"] = theirs
    timing = alternate(candidates, rounds)
    peak = matmul_peak(time.perf_counter, "float32")
    theirs, rows = timing.get("Hugging Face GPT-2, PyTorch SDPA"), []
    for name, t in timing.items():
        row = [name, str(t), f"{BATCH * SIZES['l_max'] / t.median:.0f}", f"{_flops() / t.median / peak:.0%}"]
        rows.append([*row, f"{theirs.median / t.median:.2f}" if theirs else "-"])
    sizes = ", ".join(f"{k} = {v}" for k, v in SIZES.items())
    title = f"Training step, AdamW, float32 unless noted, {sizes}, batch {BATCH}; its matrix products at the peak of "
    title += f"{peak / 1e9:.0f} GFLOP/s would take {1e3 * _flops() / peak:.0f} ms."
    header = ["", "ms", "tokens/s", "share of peak", "times Hugging Face's speed"]
    return f"{title}\n\n{table(header, rows)}"


def loss_memory() -> str:
    """Return the temporary memory of the loss and its gradients at GPT-2's vocabulary, as a Markdown table."""
    X, W_u, x = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((768, 1024), jnp.float32), ((50257, 768), jnp.float32), ((1024,), jnp.int32))
    )

    def temporary(how: Implementation) -> int:
        gradient = jax.jit(jax.grad(lambda X, W_u, x: log_loss(X, W_u, x, implementation=how), (0, 1)))
        return temporary_bytes(gradient, X, W_u, x)

    paper, chunks = temporary("paper"), temporary("auto")
    rows = [["printed", f"{paper / 1e6:.0f}", "100 %"], ["in chunks", f"{chunks / 1e6:.0f}", f"{chunks / paper:.1%}"]]
    return "log_loss, forward and backward, N_V = 50257, l = 1024.\n\n" + table(["", "MB", "share"], rows)


def training_step(
    optimizer: optax.GradientTransformation,
    implementation: Implementation,
    dtype: Any = jnp.float32,
    *,
    unroll: bool = False,
) -> Any:
    """Return the jitted update (θ, optimizer state, tokens) → (θ, optimizer state, loss), computed in ``dtype``."""
    of_theta = functools.partial(loss, implementation=implementation, dtype=dtype, unroll=unroll)
    return jax.jit(reference.training_step(of_theta, optimizer), donate_argnums=(0, 1))


def loss(
    theta: Any,
    x: jax.Array,
    *,
    implementation: Implementation = "auto",
    dtype: Any = jnp.bfloat16,
    unroll: bool = False,
) -> jax.Array:
    """Return the nats of the next tokens of x: [B, l], divided by the size of x; computed in ``dtype``."""
    theta = jax.tree.map(lambda a: a.astype(dtype), theta)
    W_u, targets = theta.variant.unembedding.matrix(theta), jnp.roll(x, -1, axis=1)
    X = d_hidden_state(x, theta, implementation=implementation, unroll=unroll)
    weights = jnp.broadcast_to(jnp.arange(x.shape[1])[None] < x.shape[1] - 1, x.shape).astype(jnp.float32)
    return log_loss(X, W_u, targets, weights=weights, implementation=implementation) / x.size


def _ours(
    variant: Variant, implementation: Implementation, dtype: Any = jnp.float32, *, unroll: bool = False
) -> Callable[[], object]:
    """Return a call that trains a model for a step."""
    config, optimizer = DTransformerConfig(**SIZES, variant=variant), optax.adamw(1e-3)
    step = training_step(optimizer, implementation, dtype, unroll=unroll)
    theta: Any = init_d_transformer(jax.random.key(0), config, scheme="gpt2")
    carried = [theta, optimizer.init(theta)]
    x = jax.random.randint(jax.random.key(1), (BATCH, config.l_max), 0, config.N_V)

    def call():
        carried[0], carried[1], value = step(carried[0], carried[1], x)
        return value.block_until_ready()

    return call


def hugging_face(sizes: Mapping[str, int], B: int) -> Callable[[], object] | None:
    """Return a call that trains Hugging Face's GPT-2 for a step; None if it is not installed."""
    torch: Any = pytorch()
    if torch is None or importlib.util.find_spec("transformers") is None:
        return None
    transformers = importlib.import_module("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    names = {"N_V": "vocab_size", "l_max": "n_positions", "d_e": "n_embd", "L": "n_layer", "H": "n_head"}
    of_config = {theirs: sizes[ours] for ours, theirs in names.items()}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0)
    off |= dict.fromkeys(("bos_token_id", "eos_token_id"))
    config, device = transformers.GPT2Config(**of_config, **off, attn_implementation="sdpa"), pytorch_device()
    model = transformers.GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x = torch.randint(0, sizes["N_V"], (B, sizes["l_max"]), device=device)

    def call():
        optimizer.zero_grad()
        loss = model(x, labels=x).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return call


def _flops() -> float:
    """Return the FLOPs of the matrix products: three times the forward ones, with causal scores."""
    d_e, d_mlp, l, L, N_V = (SIZES[k] for k in ("d_e", "d_mlp", "l_max", "L", "N_V"))
    per_token = L * (4 * d_e * d_e + 2 * d_e * d_mlp + 2 * (l / 2) * d_e) + N_V * d_e
    return 3 * 2 * per_token * BATCH * l
