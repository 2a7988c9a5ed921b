"""Gato: text and images as one sequence, for the decoder of Algorithm 10 (Phuong and Hutter 2022, §6)."""

import jax.numpy as jnp
from jax import Array

from algorithms import d_hidden_state
from algorithms.notation import LoopOptions
from training.tasks.flops import layer_flops
from training.tasks.gato_embedding import BINS, GatoConfig, GatoParams, gato_embedding, init_gato
from training.tasks.objectives import DEFAULT, Batch, Columns, Objective, next_tokens
from training.tasks.paper import D
from training.tasks.task import Task


def hidden_state(params: GatoParams, batch: Batch, options: LoopOptions = DEFAULT) -> Array:
    """Return lines 1 to 10 for a batch of the data set `Modalities`."""
    patches = jnp.moveaxis(batch["patches"], (0, 1), (3, 4))
    places = jnp.moveaxis(batch["places"], 2, 0)
    X = gato_embedding(batch["x"], patches, batch["at"], places[0], places[1], *params)
    return d_hidden_state(X, params.transformer, segments=batch["segment_ids"], **options)


def _columns(params: GatoParams, batch: Batch, options: LoopOptions) -> Columns:
    X = hidden_state(params, batch, options)
    return Columns.of(X, params.transformer, next_tokens(batch["x"]))


GATO = Task(
    name="gato",
    summary="text and images together, with Gato's lines 1 to 3 before Algorithm 10",
    records="text",
    config=GatoConfig,
    init=init_gato,
    objective=Objective(columns=_columns, weights=D.objective.weights, routed=D.objective.routed),
    flops=lambda c, l: layer_flops(c, c.L, l) + 2 * c.N_V * c.d_e * l,
    settings=("L", "patch", "d_r", "n_groups", "n_places"),
    defaults={"N_V": 1024, "L": 2, "steps": 1600, "batch_size": 8, "eval_every": 400, "eval_batches": 8},
    extra_tokens=BINS + 1,  # one for each value, and the separator
)
