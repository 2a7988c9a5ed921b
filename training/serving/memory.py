"""The memory that requests may use for keys and values.

Each number of rows and of slots of a batch is compiled as a program of its own, which takes time, and memory as long as
the server runs. So there are few of both: 1, 4, 16, 64, … rows, and 256, 1024, 4096, … slots, or all of the context.
"""

from collections.abc import Iterable, Sequence

import jax

from training.generation import Generator
from training.generation.buckets import capacity
from training.generation.layout import bytes_kept
from training.generation.prefixes import SMALLEST
from training.generation.states import Limits
from training.system import available_memory

LIKELIEST = 20  # the likeliest tokens that are always recorded; every other number would compile another program
SHARE = 2  # requests may use 1/2 of what is free


def rows_for(n: int) -> int:
    """Return the rows of a batch of n sequences: 1, 4, 16, 64, …"""
    rows = 1
    while rows < n:
        rows *= 4
    return rows


def slots_for(n: int, l_max: int) -> int:
    """Return the slots of a batch that needs n of them: 256, 1024, 4096, …"""
    slots = SMALLEST
    while slots < n:
        slots *= 4
    return min(slots, max(capacity(n), capacity(l_max + 1)))


class TooLargeError(ValueError):
    """A request that needs more memory than there is for all."""


def free_memory(generator: Generator) -> int:
    """Return the free bytes of the device of a model, the least of all if there are several."""
    free = []
    for device in jax.tree.leaves(generator.theta)[0].devices():
        stats = device.memory_stats() or {}
        free.append(stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else available_memory())
    return min(free)


class Budget:
    """Bytes that requests use, at most `max_bytes`; see `Continuation.join`, which allocates them."""

    def __init__(self, generator: Generator, max_bytes: int | None = None) -> None:
        """Give requests `max_bytes`, those of kept prefixes included; None for a share of what is free."""
        kept = generator.prefixes.max_bytes if generator.prefixes is not None else 0
        self.max_bytes = (free_memory(generator) // SHARE if max_bytes is None else max_bytes) - kept
        self._l_max = generator.config.l_max
        self._kept = bytes_kept(generator.theta)
        self._limits = generator.limits
        if self.slots < 2:
            raise ValueError(
                f"--memory: expected more than the {kept} bytes of --prefix-bytes and those of two tokens, got "
                f"{self.max_bytes + kept}; give more, or a smaller --prefix-bytes"
            )

    def of_batch(self, tokens: Sequence[int]) -> int:
        """Return the bytes of a batch whose sequences grow to these numbers of tokens."""
        C = slots_for(min(max(tokens), self._l_max) + 1, self._l_max)
        return rows_for(len(tokens)) * (self._of_caches(C, self._limits) + C * 8 * (LIKELIEST + 1))

    def of_reading(self, tokens: int) -> int:
        """Return the bytes of a prompt while it is read."""
        return 2 * self._of_caches(max(SMALLEST, capacity(min(tokens, self._l_max) + 1)), (None,) * len(self._kept))

    def _of_caches(self, C: int, limits: Limits) -> int:
        """Return the bytes that all layers keep of a sequence with C slots, of their last tokens."""
        of_layers = zip(self._kept, limits, strict=True)
        return sum(of_token * min(C, n or C) + of_sequence for (of_token, of_sequence), n in of_layers)

    def fits(self, batch: Sequence[int], read: Iterable[int]) -> bool:
        """Whether sequences that grow to `batch` tokens fit into memory beside prompts of `read` tokens."""
        return self.of_batch(batch) + sum(map(self.of_reading, read)) <= self.max_bytes

    @property
    def slots(self) -> int:
        """The most tokens of a prompt and its continuation together."""
        low, high = 0, self._l_max + 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.fits([middle], [middle]) else (low, middle - 1)
        return low

    def check(self, prompt: int, l_gen: int) -> None:
        """Raise TooLargeError if a continuation never fits."""
        if not self.fits([prompt + l_gen], [prompt]):
            raise TooLargeError(
                f"expected a prompt and a continuation of at most {self.slots} tokens together, for which there is "
                f"memory, got {prompt} and {l_gen} tokens; ask for fewer tokens, or start the server with more --memory"
            )
