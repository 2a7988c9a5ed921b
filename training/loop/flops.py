"""What a training step costs: matrix products counted from the sizes, the machine's peak at them, and memory."""

import resource
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp

from algorithms import DTransformerConfig, EDTransformerConfig
from training.tasks.models import ModelConfig

SIDE = {"cpu": 2048, "gpu": 8192, "tpu": 8192}
REPEATS = 4
BACKWARD = 3  # a product forward makes two backward


def _attention(c: ModelConfig, l_x: int, l_z: int) -> int:
    """Multiplications and additions of Algorithm 5 for a primary sequence of l_x and a context of l_z tokens."""
    projections = 2 * c.H * c.d_e * (l_x * c.d_attn + l_z * c.d_attn + l_z * c.d_mid + l_x * c.d_mid)
    return projections + 2 * c.H * l_x * l_z * (c.d_attn + c.d_mid)


def forward_flops(config: ModelConfig, *, l_x: int, l_z: int = 0, classify: bool = False) -> int:
    """Return the multiplications and additions of the matrix products of one sequence, as the pseudocode has them.

    Args:
        config: the model's sizes.
        l_x: columns of the primary sequence, padding included.
        l_z: columns of the context, for the encoder-decoder.
        classify: whether the unembedding is left out.
    """
    c = config
    mlp = 4 * c.d_e * c.d_mlp
    if isinstance(c, EDTransformerConfig):
        encoder = c.L_enc * (_attention(c, l_z, l_z) + mlp * l_z)
        decoder = c.L_dec * (_attention(c, l_x, l_x) + _attention(c, l_x, l_z) + mlp * l_x)
        return encoder + decoder + 2 * c.N_V * c.d_e * l_x
    layers = c.L * (_attention(c, l_x, l_x) + mlp * l_x)
    if classify:
        return layers
    if isinstance(c, DTransformerConfig):
        return layers + 2 * c.N_V * c.d_e * l_x
    return layers + 2 * c.d_f * (c.d_e + c.N_V) * l_x


def step_flops(task: str, config: ModelConfig, *, batch_size: int, l: int) -> int:
    """Return the multiplications and additions of a training step's matrix products, forward and backward.

    Args:
        task: the run's.
        config: the model's sizes.
        batch_size: sequences.
        l: columns of each, padding included.
    """
    sequence = forward_flops(config, l_x=l, l_z=l if task == "ed" else 0, classify=task == "classify")
    return BACKWARD * batch_size * sequence


def matmul_peak(clock: Callable[[], float], dtype: str) -> float:
    """Measure the rate of one large matrix product on the first device, the fastest of a few.

    Args:
        clock: seconds.
        dtype: of the factors.

    Returns:
        multiplications and additions per second.
    """
    n = SIDE.get(jax.default_backend(), 2048)
    A = jnp.ones((n, n), dtype)
    product = jax.jit(jnp.matmul)
    seconds = []
    for _ in range(REPEATS + 1):
        start = clock()
        product(A, A).block_until_ready()
        seconds.append(clock() - start)
    return 2 * n**3 / min(seconds[1:])  # the first one compiles


def memory_in_use() -> int:
    """Return the most bytes that were in use at once: of the first device, or of the process where it does not say."""
    stats = jax.devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
