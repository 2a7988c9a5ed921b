"""The decoder of text in a model of several modalities."""

import dataclasses
from typing import Any

from algorithms import DTransformerConfig
from training.runs.directory import Run


def of_text(run: Run) -> Run:
    """Return a run of gato as one of the task d, without values and images; other runs as they are."""
    if run.task != "gato":
        return run
    theta, config, N_V = run.theta.transformer, run.config, run.tokenizer.N_V
    W_u, b_u = (None if array is None else array[:N_V] for array in (theta.W_u, theta.b_u))
    sizes: dict[str, Any] = {f.name: getattr(config, f.name) for f in dataclasses.fields(DTransformerConfig)}
    sizes["N_V"] = N_V
    theta = theta._replace(W_e=theta.W_e[:, :N_V], W_u=W_u, b_u=b_u)
    return run._replace(theta=theta, config=DTransformerConfig(**sizes), task="d")
