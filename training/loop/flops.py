"""The cost of a training step: its matrix products, the machine's peak rate, and the memory in use."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from algorithms.model.sizes import TransformerConfig
from training.system import peak_memory
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
    line, total = variant_of(params).mlp, Fraction(0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [key.name for key in path if hasattr(key, "name")]
        total += leaf.size * (line.share_read(names[names.index("mlp") + 1]) if line and "mlp" in names else 1)
    return int(total)


def matmul_peak(clock: Callable[[], float], dtype: str) -> float:
    """Return the FLOP/s of a large matrix product, the fastest of a few."""
    product = jax.jit(jnp.matmul)
    largest = SIDE.get(jax.default_backend(), 2048)
    for n in (largest // 2, largest):
        A = jnp.ones((n, n), dtype)
        seconds = []
        for _ in range(REPEATS + 1):
            start = clock()
            product(A, A).block_until_ready()
            seconds.append(clock() - start)
        fastest = min(seconds[1:])  # the first one compiles
        if fastest > LONG:
            break
    return 2 * n**3 / fastest


def memory_in_use() -> int:
    """Return the peak bytes in use: of this process's first device, or of the process if the device does not say."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    return peak_memory()
