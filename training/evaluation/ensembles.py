"""Ensembles: the mean of several models' probabilities. The members have the same task, tokenizer and classes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from algorithms.ops.softmax import capped
from training.runs.directory import Run, RunError
from training.settings import Settings
from training.tasks import TASKS
from training.tasks.objectives import DEFAULT, Batch, Totals, cast


def check_alike(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Raise RunError if the task, tokenizer or classes of models differ."""
    first = runs[0]
    for run, name in zip(runs[1:], names[1:], strict=True):
        differing = {
            "task": run.task != first.task,
            "tokenizer": run.tokenizer.fingerprint() != first.tokenizer.fingerprint(),
            "classes": run.labels != first.labels,
        }
        what = next((what for what, differs in differing.items() if differs), None)
        if what:
            raise RunError(f"{name}: expected the same {what} as {names[0]}, got another; name matching runs")


def ensemble_totals(runs: Sequence[Run], settings: Settings) -> Callable[[Any, Batch], Totals]:
    """Return a function of all models' parameters and a batch to the sums of their mean distribution, for jit."""
    objective = TASKS[runs[0].task].objective

    def totals(params, batch):
        logs = []
        for theta in params:
            c = objective.columns(cast(theta, settings.dtype), batch, DEFAULT)
            logits = jnp.einsum("nd,dbl->nbl", c.W_u, c.X, preferred_element_type=jnp.float32)
            logits = logits if c.b_u is None else logits + c.b_u[:, None, None]
            logs.append(jax.nn.log_softmax(capped(logits, c.cap), axis=0))
            targets = c.targets
        log_P = jax.nn.logsumexp(jnp.stack(logs), axis=0) - jnp.log(float(len(logs)))
        weights = objective.weights(batch)
        nats = -jnp.take_along_axis(log_P, targets[None], axis=0)[0]
        correct = jnp.sum(weights * (log_P.argmax(axis=0) == targets))
        return Totals(jnp.sum(weights * nats), weights.sum(), correct)

    return totals
