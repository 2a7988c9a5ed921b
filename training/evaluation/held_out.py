"""A model's loss, perplexity, accuracy and bits per byte on held-out data."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import jax
import numpy as np

from training.data.batches import Batch, Batches
from training.data.records import DataError
from training.runs.directory import Run
from training.settings import Settings
from training.tasks import TASKS
from training.tasks.objectives import Totals, make_totals

Progress = Callable[[int, int], None]  # receives the batches or examples done since the last call, and the total


def evaluate(
    totals: Callable[[Any, Batch], Totals],
    params: Any,
    batches: Iterable[Batch],
    *,
    tokens_per_byte: float | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return loss in nats per predicted token, perplexity, accuracy and bits_per_byte (unless `tokens_per_byte` of the
    whole text is None) on the held-out batches; `check` is called before each, and may raise. Raises DataError if they
    have no tokens to predict.
    """
    sums = np.zeros(3)
    for batch in batches:
        check()
        sums += [float(total) for total in totals(params, batch)]
    nats, weight, correct = sums
    if not weight:
        _refuse_empty()
    loss = nats / weight
    results = {"loss": loss, "perplexity": perplexity(loss), "accuracy": correct / weight}
    if tokens_per_byte is not None:
        results["bits_per_byte"] = loss / math.log(2) * tokens_per_byte
    return {name: float(value) for name, value in results.items()}


def check_predicts(weights: Callable[[Any], Any], batches: Iterable[Batch]) -> None:
    """Raise DataError unless held-out batches have tokens to predict, by the weights of their columns."""
    if not any(np.any(weights(batch)) for batch in batches):
        _refuse_empty()


def _refuse_empty() -> NoReturn:
    advice = "give more held-out data or more --eval-batches, or for e a larger --p_mask"
    raise DataError(f"the held-out data: expected tokens to predict, got none in the batches to evaluate; {advice}")


def evaluate_run(
    run: Run, settings: Settings, data: Batches, progress: Progress = lambda n, total: None
) -> dict[str, float]:
    """Evaluate a run on all of a data set, as `evaluate` does."""

    def batches() -> Iterator[Batch]:
        for batch in data.evaluation_batches():
            yield batch
            progress(1, data.n_steps)

    totals = jax.jit(make_totals(TASKS[run.task].objective, settings))
    return evaluate(totals, run.theta, batches(), tokens_per_byte=data.tokens_per_byte)


def perplexity(loss: float) -> float:
    """Return e^loss, or infinity if that is too large."""
    return math.exp(loss) if loss < 700 else math.inf
