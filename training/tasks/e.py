"""The encoder of Algorithm 9, trained to recover masked tokens, as in Algorithm 12."""

import jax.numpy as jnp
from jax import Array

from algorithms import ETransformerConfig, e_hidden_state, init_e_transformer
from training.tasks.objectives import Batch, Columns, Objective, in_sequence
from training.tasks.task import Task, embedding_flops, layer_flops


def _columns(params, batch: Batch, keys, **options) -> Columns:
    X = e_hidden_state(batch["x_masked"], params, key=keys, length=batch["length"], **options)
    return Columns.of(X, params, batch["x"])


def _weights(batch: Batch) -> Array:
    return batch["loss_mask"].astype(jnp.float32)


E = Task(
    name="e",
    summary="masked-token prediction, with Algorithm 9",
    records="text",
    config=ETransformerConfig,
    init=init_e_transformer,
    objective=Objective(columns=_columns, weights=_weights, routed={"7": in_sequence()}),
    flops=lambda c, l: c.L * layer_flops(c, l) + embedding_flops(c, l) + 2 * c.d_f * (c.d_e + c.N_V) * l,
    settings=("L", "d_in", "masking", "p_mask"),
    defaults={"tokenizer": "characters", "l_max": 64, "variant": "BERT", "L": 2, "init": "glorot"}
    | {"steps": 1000, "batch_size": 64},
)
