"""Whether an update fits into memory, and how many parts a batch must be split into."""

import dataclasses
from typing import Any

import jax

from training.mesh.shape import MeshError, check_sizes
from training.settings import Settings, SettingsError
from training.system import physical_memory


def limit(devices: int) -> int:
    """Return the bytes available on each device: what the first one reports, else its share of the machine's memory."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    return physical_memory() // devices


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
