"""What follows from the lines of a transformer: loss, gradients, updates, sampled tokens, decoding with a cache."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .cases import EPSILON
from .catalogue import SLOTS
from .diagnose import Departure, Diagnosis, Walk
from .reference import Reference, gradient

__all__ = ["findings"]

TRAINING = {8: (11, "5", "6"), 9: (12, "9", "10"), 10: (13, "5", "6")}
"""Transformer → the algorithm of its training, and its lines of the loss and of the step."""


def findings(diagnosis: Diagnosis, walk: Walk) -> list[Departure]:
    """The departures of the loss, and of what follows from it."""
    return list(_findings(diagnosis, walk)) if diagnosis.case.algorithm in TRAINING else []


def _findings(diagnosis: Diagnosis, walk: Walk) -> Iterator[Departure]:
    if walk.departures and walk.departures[-1].kind in ("unknown", "stopped"):
        return
    n, line, step = TRAINING[diagnosis.case.algorithm]
    slot = "masked_loss" if diagnosis.case.algorithm == 9 else "loss"
    recording, loss = diagnosis.recording, diagnosis.case.base.get(slot, "sum")
    if recording.loss is not None:
        found = _loss(diagnosis, walk)
        if found is None:
            yield Departure(n, line, "", "", "the loss differs, by no choice of the catalogue", "unknown")
            return
        if found != loss:
            yield Departure(n, line, "", "", SLOTS[slot][found].text, "named", {slot: found})
        loss = found
    wrong = _gradients(diagnosis, walk, loss) if recording.gradients else []
    if wrong:
        yield Departure(n, step, "gradient", "", f"the gradient differs of {', '.join(wrong)}", "unknown")


def _epsilon(diagnosis: Diagnosis) -> float:
    return EPSILON["float32"] if diagnosis.is_mixed else diagnosis.epsilon


def _loss(diagnosis: Diagnosis, walk: Walk) -> str | None:
    """The choice that gives the code's loss."""
    options: dict[str, Any] = {"extras": diagnosis.extras}
    theirs = diagnosis.recording.loss or 0.0
    exact = Reference(diagnosis.case, walk.choices, **options).go()
    noisy = Reference(diagnosis.case, walk.choices, epsilon=_epsilon(diagnosis), **options).go()
    for name, value in exact.losses().items():
        spread = noisy.loss(name)
        tolerance = 8 * float(np.abs(spread - spread[0]).max()) + 1e-13
        if abs(float(value[0]) - theirs) <= tolerance:
            return name
    return None


def _gradients(diagnosis: Diagnosis, walk: Walk, loss: str) -> list[str]:
    """The names of θ whose foreign gradient differs."""
    g = gradient(diagnosis.case, loss, walk.choices, extras=diagnosis.extras)
    largest, wrong = max(float(np.abs(a).max()) for a in g.values()), []
    for name, theirs in _foreign(diagnosis, diagnosis.recording.gradients).items():
        mine = g[name].reshape(-1)
        have = ~np.isnan(theirs)
        tolerance = 300 * _epsilon(diagnosis) * (np.abs(mine).max() + 1e-3 * largest)
        wrong += [name] if np.abs(theirs - mine)[have].max(initial=0.0) > tolerance else []
    return wrong


def _foreign(diagnosis: Diagnosis, arrays: Any) -> dict[str, np.ndarray]:
    """Foreign gradients (or updated parameters) by θ's names, flat; NaN where nothing is known."""
    found: dict[str, np.ndarray] = {}
    for foreign, parts in diagnosis.maps.items():
        if foreign in arrays:
            for name, mine, theirs in parts:
                flat = found.setdefault(name, np.full(diagnosis.case.theta[name].size, np.nan))
                flat[mine] = arrays[foreign].reshape(-1)[theirs]
    return found
