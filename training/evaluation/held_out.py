"""How well a model predicts held-out data: loss, perplexity, accuracy and bits per byte."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from training.data.batches import Batch
from training.tasks.objectives import Totals


def evaluate(
    totals: Callable[[Any, Batch], Totals],
    params: Any,
    batches: Iterable[Batch],
    *,
    limit: int = 0,
    tokens_per_byte: float | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return loss in nats per predicted token, perplexity, accuracy and bits_per_byte on the held-out batches, or
    on the first `limit` of them, whose bits per byte are an estimate from their loss. `tokens_per_byte` counts
    predicted tokens of the whole text (None: no bits per byte); `check` is called before every batch, and may
    raise.
    """
    sums = np.zeros(3)
    for batch in itertools.islice(batches, limit or None):
        check()
        sums += [float(total) for total in totals(params, batch)]
    nats, weight, correct = sums
    loss = nats / weight
    results = {"loss": loss, "perplexity": perplexity(loss), "accuracy": correct / weight}
    if tokens_per_byte is not None:
        results["bits_per_byte"] = loss / math.log(2) * tokens_per_byte
    return {name: float(value) for name, value in results.items()}


def perplexity(loss: float) -> float:
    """Return e^loss, infinite where that is too large."""
    return math.exp(loss) if loss < 700 else math.inf
