"""The decoder of Algorithm 10, trained to predict every next token, as in Algorithm 13."""

import jax.numpy as jnp
from jax import Array

from algorithms import DTransformerConfig, d_hidden_state, init_d_transformer
from training.tasks.objectives import Batch, Columns, Objective, has_next, in_sequence, next_tokens
from training.tasks.task import Task, decoder_flops


def _columns(params, batch: Batch, keys, **options) -> Columns:
    packed = {"positions": batch.get("positions"), "segments": batch.get("segment_ids")}
    X = d_hidden_state(batch.get("x_read", batch["x"]), params, key=keys, **packed, **options)
    return Columns.of(X, params, next_tokens(batch["x"]))


def _weights(batch: Batch) -> Array:
    if "loss_mask" in batch:
        return batch["loss_mask"].astype(jnp.float32)
    return has_next(batch["x"], batch["length"])


D = Task(
    name="d",
    summary="next-token prediction, with Algorithm 10",
    records="text",
    config=DTransformerConfig,
    init=init_d_transformer,
    objective=Objective(columns=_columns, weights=_weights, routed={"8": in_sequence()}),
    flops=lambda c, l: decoder_flops(c, l) + 2 * c.N_V * c.d_e * l,
    settings=("L", "rows", "pairs", "labeled", "token_noise", "lora_rank", "lora_alpha", "lora_matrices"),
    defaults={"N_V": 4096, "L": 2, "steps": 1000, "batch_size": 8, "eval_every": 250},
)
