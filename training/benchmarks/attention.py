"""Causal attention, forward and backward: all implementations, compared with the paper's lines and PyTorch's SDPA."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from algorithms import UNIDIRECTIONAL, banded, scaled_dot_product_attention
from algorithms.masks import StructuralMask
from algorithms.notation import Implementation
from training.benchmarks import reference
from training.benchmarks.timing import (
    Timing,
    alternate,
    pytorch,
    pytorch_device,
    table,
    temporary_bytes,
)
from training.loop.cost import matmul_peak

SIZES = ((12, 1024, 64), (12, 2048, 64), (64, 256, 32))
SMALL_SIZES = ((8, 32, 32), (256, 32, 32), (8, 64, 64), (64, 64, 32), (12, 128, 64), (64, 128, 32), (12, 512, 64))
GPU_SIZES = tuple((16, l, d) for d in (64, 128) for l in (1024, 2048, 4096, 8192, 16384))
IN_A_ROW = 20
"""Calls that are timed together on an accelerator, which computes one while the host starts the next."""
# Matrix products of l x l x d; causal attention needs half of them.
PRODUCTS = {"forward": 2, "forward and backward": 7}


def run(rounds: int) -> str:
    """Return the measurements as Markdown tables."""
    on_gpu = jax.default_backend() == "gpu"
    dtype = jnp.bfloat16 if on_gpu else jnp.float32
    implementations: list[Implementation] = ["auto", "blockwise"] if on_gpu else ["paper", "dense", "blockwise", "auto"]
    peak = matmul_peak(time.perf_counter, jnp.dtype(dtype).name)
    title = f"{jnp.dtype(dtype).name}, causal; matrix products peak at {peak / 1e9:.0f} GFLOP/s."
    cases: list[Any] = [(title, GPU_SIZES if on_gpu else SIZES, implementations, rounds)]
    cases += [] if on_gpu else [("small.", SMALL_SIZES, ["paper", "auto"], 3 * rounds)]
    return "\n\n".join(
        f"Attention {passes}, {what}\n\n{_table(*options, passes=passes, dtype=dtype, peak=peak)}"
        for what, *options in cases
        for passes in PRODUCTS
    )


def _table(
    sizes, implementations: list[Implementation], rounds: int, *, passes: str, dtype: jnp.dtype, peak: float
) -> str:
    header = ["heads x l x d", *(f"{name} ms" for name in implementations), "PyTorch SDPA ms", "paper / auto"]
    header += ["PyTorch / auto", "GFLOP/s", "share of peak"]
    rows = []
    for heads, l, d in sizes:
        timing = timings(implementations, rounds, (heads, l, d), dtype, passes)
        auto = timing["auto"].median
        rate = flops(heads, l, d, passes) / auto
        row = [f"{heads} x {l} x {d}", *(str(timing[name]) for name in implementations)]
        row += [str(timing["torch"]) if "torch" in timing else "not installed"]
        row += [f"{timing[name].median / auto:.2f}" if name in timing else "-" for name in ("paper", "torch")]
        rows.append([*row, f"{rate / 1e9:.0f}", f"{rate / peak:.0%}"])
    return table(header, rows)


def timings(
    implementations: list[Implementation],
    rounds: int,
    size: tuple[int, int, int],
    dtype: Any,
    passes: str,
    plain: str = "",
) -> dict[str, Timing]:
    """Return the times of the implementations, of "plain" JAX by a kernel of `reference.attention` if one is given, and
    of "torch" if it is installed, for (heads, tokens, rows).
    """
    n = 1 if jax.default_backend() == "cpu" else IN_A_ROW
    candidates: dict[str, Callable[[], object]] = {
        name: _ours(name, *size, dtype, passes, n) for name in implementations
    }
    if plain:
        candidates["plain"] = _plain(plain, *size, dtype, passes, n)
    if (torch_call := _pytorch(*size, dtype, passes, n)) is not None:
        candidates["torch"] = torch_call
    return {name: timing.of_each(n) for name, timing in alternate(candidates, rounds).items()}


def flops(heads: int, l: int, d: int, passes: str) -> float:
    """Return the FLOPs of the matrix products, of the pairs of tokens that a causal mask leaves."""
    return PRODUCTS[passes] * 2 * heads * l * l * d / 2


def memory() -> str:
    """Return the temporary memory of forward and backward, compiled but not run, as a Markdown table."""
    header = ["l", "paper MB", "blockwise MB", "share"]
    rows = []
    for l in (4096, 8192, 16384):
        temporary = {name: _temporary_bytes(name, l) for name in ("paper", "blockwise")}
        share = temporary["blockwise"] / temporary["paper"]
        rows.append([str(l), *(f"{b / 1e6:.1f}" for b in temporary.values()), f"{share:.2%}"])
    return "Temporary memory of one head, d = 64, float32, forward and backward.\n\n" + table(header, rows)


def windows(rounds: int) -> str:
    """Return the times of GPT-3's locally banded attention and of dense attention as a Markdown table."""
    width, passes = 256, "forward and backward"
    header = ["l", "dense ms", "window ms", "dense / window", "window MB"]
    rows = []
    for l in (2048, 4096, 8192):
        candidates = {
            "dense": _ours("dense", 1, l, 64, jnp.float32, passes),
            "window": _ours("blockwise", 1, l, 64, jnp.float32, passes, mask=banded(width)),
        }
        timing = alternate(candidates, rounds)
        ratio = timing["dense"].median / timing["window"].median
        memory = _temporary_bytes("blockwise", l, banded(width))
        rows.append([str(l), *(str(t) for t in timing.values()), f"{ratio:.1f}", f"{memory / 1e6:.1f}"])
    title = f"A window of {width} tokens beside dense causal attention, {passes}, one head, d = 64, float32."
    return f"{title}\n\n{table(header, rows)}"


def _compiled(implementation: Implementation, passes: str, mask: StructuralMask = UNIDIRECTIONAL) -> Callable:
    attend = functools.partial(scaled_dot_product_attention, implementation=implementation)

    return _passes(lambda Q, K, V: attend(Q, K, V, mask), passes)


def _passes(attend: Callable[..., jax.Array], passes: str) -> Callable:
    """Attention, or the gradients of a sum of its outputs with weights E, as a compiled function of Q, K, V and E."""

    def objective(Q, K, V, E):
        return (attend(Q, K, V) * E).astype(jnp.float32).sum()

    return jax.jit((lambda Q, K, V, E: attend(Q, K, V)) if passes == "forward" else jax.grad(objective, (0, 1, 2)))


def _ours(
    implementation: Implementation, heads: int, l: int, d: int, dtype: Any, passes: str, n: int = 1, mask=UNIDIRECTIONAL
) -> Callable[[], object]:
    """Return a call that computes it n times in a row; so do `_plain` and `_pytorch`."""
    inputs = [jax.random.normal(jax.random.key(i), (d, heads, l), dtype) for i in range(4)]
    compiled = _compiled(implementation, passes, mask)
    return lambda: jax.block_until_ready([compiled(*inputs) for _ in range(n)])


def _plain(kernel: str, heads: int, l: int, d: int, dtype: Any, passes: str, n: int) -> Callable[[], object]:
    inputs = [jax.random.normal(jax.random.key(i), (1, l, heads, d), dtype) for i in range(4)]
    compiled = _passes(functools.partial(reference.attention, kernel=kernel), passes)

    def call():
        with reference.in_use():
            return jax.block_until_ready([compiled(*inputs) for _ in range(n)])

    return call


def _temporary_bytes(implementation: Implementation, l: int, mask: StructuralMask = UNIDIRECTIONAL) -> int:
    inputs = [jax.ShapeDtypeStruct((64, 1, l), jnp.float32)] * 4
    return temporary_bytes(_compiled(implementation, "forward and backward", mask), *inputs)


def _pytorch(heads: int, l: int, d: int, dtype: Any, passes: str, n: int) -> Callable[[], object] | None:
    torch = pytorch()
    if torch is None:
        return None
    options = {"dtype": getattr(torch, jnp.dtype(dtype).name), "device": pytorch_device()}
    backward = passes != "forward"
    Q, K, V = (torch.randn(1, heads, l, d, requires_grad=backward, **options) for _ in range(3))
    E = torch.randn(1, heads, l, d, **options)

    def call():
        for _ in range(n):
            out = torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
            if backward:
                out = torch.autograd.grad((out * E).sum(), (Q, K, V))
        if options["device"] == "cuda":
            torch.cuda.synchronize()

    return call
