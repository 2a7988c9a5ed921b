"""Why a training cannot continue: which arrays are not finite."""

import math
from typing import Any

import numpy as np

from training.runs.named_arrays import flatten

STACKED = ("layers.", "encoder.", "decoder.")
NAMED = 3


class TrainingError(RuntimeError):
    """The training stopped; the message says what happened, where, and what is kept."""


def _kept(checkpoint: int | None) -> str:
    return "there is no checkpoint yet" if checkpoint is None else f"the last good checkpoint is of step {checkpoint}"


def not_finite(step: int, loss: float, rate: float, gradient: Any, checkpoint: int | None) -> TrainingError:
    """Return the error for an update whose loss or gradient, at the last parameters that were sound, is not finite."""
    places = [name for leaf, array in flatten(gradient).items() for name in _places(leaf, np.asarray(array))]
    named = ", ".join(places[:NAMED]) + (f" and {len(places) - NAMED} more" if len(places) > NAMED else "")
    where = f"not finite are the gradients of {named}" if places else "each gradient is finite, but their norm is not"
    return TrainingError(
        f"step {step}: the loss is {loss} and {where}, at learning rate {rate:.3g}. The update was not made; "
        f"{_kept(checkpoint)}. Try a smaller learning_rate, a clip_norm, or dtype float32, in another directory"
    )


def _places(name: str, array: np.ndarray) -> list[str]:
    finite = np.isfinite(array)
    if finite.all():
        return []
    if not name.removeprefix("encoder.").startswith(STACKED) and not name.startswith(STACKED):
        return [name]
    layers = np.flatnonzero(~finite.reshape(len(array), -1).all(axis=1))
    return [f"{name}[{layers[0]}]"]


def explosion(step: int, loss: float, limit: float, checkpoint: int | None) -> TrainingError:
    """Return the error for a loss, in nats per token, that is larger than the limit."""
    return TrainingError(
        f"step {step}: the loss is {loss:.4g} nats, more than {limit:.4g} (explosion times a uniform guess's); "
        f"{_kept(checkpoint)}. Try a smaller learning_rate, a longer warmup or a clip_norm, in another directory"
    )


def loss_limit(factor: float, classes: int) -> float:
    """Return the loss from which on a training has exploded: `factor` times that of a uniform guess."""
    return factor * math.log(classes)
