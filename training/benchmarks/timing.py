"""Times several candidates in one run, alternating, so that a drift of the machine affects all of them equally."""

import importlib
import importlib.util
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

PAUSE = 0.01
"""Seconds between the calls of two candidates."""


class Timing(NamedTuple):
    """Seconds per call."""

    median: float
    low: float  # lower quartile
    high: float  # upper quartile

    def of_each(self, n: int) -> "Timing":
        """Return the seconds of each of n calls."""
        return Timing(*(seconds / n for seconds in self))

    def __str__(self) -> str:
        digits = 1 if self.median >= 0.01 else 3
        median, low, high = (f"{1e3 * seconds:.{digits}f}" for seconds in self)
        return f"{median} ({low}-{high})"


def alternate(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Time the candidates, one after another, ``rounds`` times, each after an untimed call. A call must block.

    After a call, PyTorch's threads occupy a core for milliseconds; the pause lets them fall asleep. The untimed call
    compiles, and refills the caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            time.sleep(PAUSE)
            call()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(statistics.median(s), *statistics.quantiles(s, n=4)[::2]) for name, s in seconds.items()}


def pytorch() -> Any:
    """Return PyTorch if it is installed, and runs on what JAX runs on; else None."""
    platform = jax.default_backend()
    if platform == "tpu" or importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if platform == "cpu" or torch.cuda.is_available() else None


def pytorch_device() -> str:
    """Return PyTorch's name of what JAX runs on."""
    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def temporary_bytes(function: Any, *inputs: jax.ShapeDtypeStruct) -> int:
    """Return the memory that a compiled function needs besides arguments and results; nothing is run."""
    return function.lower(*inputs).compile().memory_analysis().temp_size_in_bytes


def machine() -> str:
    """Return the device and the version of jax."""
    device = jax.devices()[0]
    return f"{device.platform} ({device.device_kind or platform.processor()}), jax {jax.__version__}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
