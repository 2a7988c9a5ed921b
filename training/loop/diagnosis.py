"""Why a training cannot go on."""

import re
from typing import Any

import numpy as np

from training.runs.named_arrays import flatten

STACKED = re.compile(r"(\w+\.)?layers\.|(en|de)coder\.(\w+_)?(attention|mlp|norm\d)\.")  # arrays stacked over layers
NAMED = 3


class TrainingError(RuntimeError):
    """The training stopped; the message says what happened, where, and what is kept."""


def _kept(checkpoint: int | None) -> str:
    return "there is no checkpoint yet" if checkpoint is None else f"the last good checkpoint is of step {checkpoint}"


def not_finite(step: int, loss: float, rate: float, gradient: Any, checkpoint: int | None) -> TrainingError:
    """Return the error for an update with a non-finite loss or gradient; `gradient` is recomputed before the update."""
    finite = {name: np.isfinite(array) for name, array in flatten(gradient).items()}
    places = [  # with the first layer that is not finite of a stacked array
        f"{name}[{np.argmin(array.reshape(len(array), -1).all(axis=1))}]" if STACKED.match(name) else name
        for name, array in finite.items()
        if not array.all()
    ]
    named = ", ".join(places[:NAMED]) + (f" and {len(places) - NAMED} more" if len(places) > NAMED else "")
    where = f"the gradients of {named} are not finite" if places else "all gradients are finite, but their norm is not"
    return TrainingError(
        f"step {step}: the loss is {loss} and {where}, at learning rate {rate:.3g}. The update was not made; "
        f"{_kept(checkpoint)}. Try a smaller learning_rate, a clip_norm, or dtype float32, in another directory"
    )


def explosion(step: int, loss: float, limit: float, checkpoint: int | None) -> TrainingError:
    """Return the error for losses, in nats per token, that stay above the limit."""
    return TrainingError(
        f"step {step}: the loss is {loss:.4g} nats, and has been more than {limit:.4g} (--explosion times a uniform "
        f"guess's) for several updates in a row; {_kept(checkpoint)}. Try a smaller learning_rate, a longer warmup or "
        "a clip_norm, in another directory, or go on with a larger --explosion"
    )
