"""The cost of a training step, in matrix products and memory, and what the machine has of both."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from algorithms.layers import EARNED, MOST_UNROLLED, earn_unrolling
from algorithms.model.sizes import TransformerConfig
from training.mesh.shape import MeshError, check_sizes
from training.settings import Settings, SettingsError
from training.system import memory_limit, peak_memory
from training.tasks import TASKS
from training.tasks.objectives import variant_of

SIDE = {"cpu": 2048, "gpu": 8192, "tpu": 8192}
REPEATS = 4
LONG = 0.005  # seconds: a larger product would not reach a higher rate
BACKWARD = 3  # the backward pass has two products for each of the forward pass


def step_flops(task: str, config: TransformerConfig, *, batch_size: int, l: int) -> int:
    """Return the FLOPs of a training step's matrix products, padding included."""
    return BACKWARD * batch_size * TASKS[task].flops(config, l)


def active_parameters(params: Any) -> int:
    """Return the number of parameters (or their shapes) that each token reads: of experts, only the chosen ones."""
    lines, total = list(filter(None, variant_of(params).mlps)), Fraction(0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [key.name for key in path if hasattr(key, "name")]
        name = names[names.index("mlp") + 1] if "mlp" in names else ""
        total += leaf.size * min([Fraction(1), *(line.share_read(name) for line in lines if name)])
    return int(total)


def matmul_peak(clock: Callable[[], float], dtype: str) -> float:
    """Return the FLOP/s of the fastest of a few products of normal matrices; of ones, a GPU would be faster."""
    product = jax.jit(jnp.matmul)
    largest = SIDE.get(jax.default_backend(), 2048)
    for n in (largest // 2, largest):
        A = jax.random.normal(jax.random.key(0), (n, n), dtype)
        seconds = []
        for _ in range(REPEATS + 1):
            start = clock()
            product(A, A).block_until_ready()
            seconds.append(clock() - start)
        fastest = min(seconds[1:])  # the first one compiles
        if fastest > LONG:
            break
    return 2 * n**3 / fastest


def with_unrolling(settings: Settings, platform: str) -> tuple[Settings, str]:
    """Return the settings, unrolled if a run on a GPU is long enough to earn the compilation, and a note, or ""."""
    sizes = TASKS[settings.task].all_settings().keys() & {"L", "L_enc", "L_dec"}
    layers = sum(getattr(settings, name) for name in sizes)
    if settings.unroll or not earn_unrolling(settings.steps, layers, platform):
        return settings, ""
    rule = f"{EARNED:,} or more of at most {MOST_UNROLLED} layers"
    note = f"layers are unrolled, for {settings.steps:,} updates on a GPU ({rule}): --no-unroll leaves them"
    return dataclasses.replace(settings, unroll=True), note


def memory_in_use() -> int:
    """Return the peak bytes in use: of this process's first device, or of the process if the device does not say."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", peak_memory())


def limit(devices: int) -> int:
    """Return the bytes available on each device: what the first one reports, else its share of the memory here."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", memory_limit() // devices)


def needed(compiled: Any) -> int:
    """Return the bytes that a compiled function needs on each device; 0 if the compiler does not say."""
    analysis = compiled.memory_analysis() if hasattr(compiled, "memory_analysis") else None
    if analysis is None:
        return 0
    reused = analysis.alias_size_in_bytes
    return analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes - reused


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    text = str(error)
    return isinstance(error, jax.errors.JaxRuntimeError) and ("RESOURCE_EXHAUSTED" in text or "ut of memory" in text)


def in_more_parts(settings: Settings) -> Settings | None:
    """Return the settings with the batch in twice as many parts, or the next possible number; None if there is none."""
    for parts in range(2 * settings.accumulation_steps, settings.batch_size + 1):
        try:
            smaller = dataclasses.replace(settings, accumulation_steps=parts)
            check_sizes(smaller)
            return smaller
        except (SettingsError, MeshError):
            continue
    return None
