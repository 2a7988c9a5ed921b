"""Attention forward and backward, causal: every implementation beside the printed lines and PyTorch's SDPA."""

import functools
import importlib.util
from collections.abc import Callable

import jax
import jax.numpy as jnp

from algorithms import UNIDIRECTIONAL, scaled_dot_product_attention
from scripts.benchmarks.timing import alternate, matrix_product_peak, table, temporary_bytes

__all__ = ["memory", "run"]

SIZES = ((12, 1024, 64), (12, 2048, 64), (64, 256, 32))
GPU_SIZES = tuple((16, l, d) for d in (64, 128) for l in (1024, 2048, 4096, 8192, 16384))
PRODUCTS_FORWARD, PRODUCTS_BACKWARD = 2, 5  # matrix products of l x l x d, of which causal attention needs half


def run(rounds: int) -> str:
    """Measure, and return the Markdown table."""
    on_gpu = jax.default_backend() == "gpu"
    dtype = jnp.bfloat16 if on_gpu else jnp.float32
    implementations = ["auto", "blockwise"] if on_gpu else ["paper", "dense", "blockwise", "auto"]
    peak = matrix_product_peak(dtype)
    header = ["heads x l x d", *(f"{name} ms" for name in implementations), "PyTorch SDPA ms", "paper / auto"]
    header += ["PyTorch / auto", "share of peak"]
    rows = []
    for heads, l, d in GPU_SIZES if on_gpu else SIZES:
        candidates = {name: _ours(name, heads, l, d, dtype) for name in implementations}
        torch_call = _pytorch(heads, l, d, on_gpu)
        if torch_call is not None:
            candidates["torch"] = torch_call
        timing = alternate(candidates, rounds)
        flops = (PRODUCTS_FORWARD + PRODUCTS_BACKWARD) * 2 * heads * l * l * d / 2
        auto = timing["auto"].median
        row = [f"{heads} x {l} x {d}", *(str(timing[name]) for name in implementations)]
        row += [str(timing["torch"]) if "torch" in timing else "not installed"]
        row += [f"{timing['paper'].median / auto:.2f}" if "paper" in timing else "-"]
        row += [f"{timing['torch'].median / auto:.2f}" if "torch" in timing else "-"]
        rows.append([*row, f"{flops / auto / peak:.0%}"])
    title = f"Attention forward and backward, {jnp.dtype(dtype).name}, causal; "
    title += f"matrix products peak at {peak / 1e9:.0f} GFLOP/s."
    return f"{title}\n\n{table(header, rows)}"


def memory() -> str:
    """Temporary memory of forward and backward, compiled and not run, as a Markdown table."""
    header = ["l", "paper MB", "blockwise MB", "share"]
    rows = []
    for l in (4096, 8192, 16384):
        temporary = {name: _temporary_bytes(name, l) for name in ("paper", "blockwise")}
        share = temporary["blockwise"] / temporary["paper"]
        rows.append([str(l), *(f"{b / 1e6:.1f}" for b in temporary.values()), f"{share:.2%}"])
    return "Temporary memory of one head, d = 64, float32, forward and backward.\n\n" + table(header, rows)


def _gradient(implementation: str) -> Callable:
    attend = functools.partial(scaled_dot_product_attention, implementation=implementation)

    def objective(Q, K, V, E):
        V_tilde = jax.vmap(lambda Q, K, V: attend(Q, K, V, UNIDIRECTIONAL))(Q, K, V)
        return (V_tilde * E).astype(jnp.float32).sum()

    return jax.jit(jax.grad(objective, (0, 1, 2)))


def _ours(implementation: str, heads: int, l: int, d: int, dtype: jnp.dtype) -> Callable[[], object]:
    inputs = [jax.random.normal(jax.random.key(i), (heads, d, l), dtype) for i in range(4)]
    gradient = _gradient(implementation)
    return lambda: jax.block_until_ready(gradient(*inputs))


def _temporary_bytes(implementation: str, l: int) -> int:
    inputs = [jax.ShapeDtypeStruct((1, 64, l), jnp.float32)] * 4
    return temporary_bytes(_gradient(implementation), *inputs)


def _pytorch(heads: int, l: int, d: int, on_gpu: bool) -> Callable[[], object] | None:
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    options = {"dtype": torch.bfloat16 if on_gpu else torch.float32, "device": "cuda" if on_gpu else "cpu"}
    Q, K, V = (torch.randn(1, heads, l, d, requires_grad=True, **options) for _ in range(3))
    E = torch.randn(1, heads, l, d, **options)

    def call():
        out = torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
        gradients = torch.autograd.grad((out * E).sum(), (Q, K, V))
        if on_gpu:
            torch.cuda.synchronize()
        return gradients

    return call
