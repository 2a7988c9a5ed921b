"""The tasks of the paper: next tokens (Algorithm 13), masked tokens (12), and sequence to sequence (11)."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from algorithms import (
    DTransformerConfig,
    DTransformerParams,
    EDTransformerConfig,
    ETransformerConfig,
    d_hidden_state,
    e_hidden_state,
    ed_hidden_state,
    init_d_transformer,
    init_e_transformer,
    init_ed_transformer,
    mtp_hidden_state,
)
from algorithms.notation import LoopOptions
from training.tasks.flops import attention_flops, embedding_flops, layer_flops
from training.tasks.objectives import Batch, Columns, Objective, has_next, in_sequence, next_tokens
from training.tasks.task import Task

LOW_RANK = ("lora_rank", "lora_alpha", "lora_matrices")


def _d_columns(params, batch: Batch, options: LoopOptions) -> Columns:
    X = d_hidden_state(batch.get("x_read", batch["x"]), params, segments=batch.get("segment_ids"), **options)
    return Columns.of(X, params, next_tokens(batch["x"]))


def _d_weights(batch: Batch) -> Array:
    if "loss_mask" in batch:
        return batch["loss_mask"].astype(jnp.float32)
    return has_next(batch["x"], batch["length"])


def _d_mtp(X: Array, params: DTransformerParams, batch: Batch, options: LoopOptions) -> tuple[Columns, Array]:
    segments, weights = batch.get("segment_ids"), next_tokens(_d_weights(batch))
    weights = weights * (jnp.arange(weights.shape[1]) + 1 < weights.shape[1])[None]
    if segments is not None:
        weights = weights * (segments == next_tokens(segments))
    X = mtp_hidden_state(X, next_tokens(batch.get("x_read", batch["x"])), params, segments=segments, **options)
    return Columns.of(X, params, next_tokens(next_tokens(batch["x"]))), weights


def _d_flops(c: DTransformerConfig, l: int) -> int:
    unembedding = 2 * c.d_e * (c.variant.unembedding.projected * c.d_e + c.N_V) * l
    of_model = layer_flops(c, c.L, l) + unembedding
    if not c.variant.mtp:
        return of_model
    head = dataclasses.replace(c, L=1, variant=c.variant.of_mtp)
    return of_model + layer_flops(head, 1, l) + 2 * c.d_e * 2 * c.d_e * l + unembedding


D = Task(
    name="d",
    summary="next-token prediction, with Algorithm 10",
    records="text",
    config=DTransformerConfig,
    init=init_d_transformer,
    objective=Objective(columns=_d_columns, weights=_d_weights, routed={"8": in_sequence()}, mtp=_d_mtp),
    flops=_d_flops,
    settings=("L", "rows", "pairs", "labeled", "messages_are_markup", "token_noise", "mtp_weight", *LOW_RANK),
    defaults={"N_V": 4096, "L": 2, "steps": 1000, "batch_size": 8, "eval_every": 250},
)


def _e_columns(params, batch: Batch, options: LoopOptions) -> Columns:
    X = e_hidden_state(batch["x_masked"], params, length=batch["length"], **options)
    return Columns.of(X, params, batch["x"])


E = Task(
    name="e",
    summary="masked-token prediction, with Algorithm 9",
    records="text",
    config=ETransformerConfig,
    init=init_e_transformer,
    objective=Objective(
        columns=_e_columns, weights=lambda batch: batch["loss_mask"].astype(jnp.float32), routed={"7": in_sequence()}
    ),
    flops=lambda c, l: (
        layer_flops(c, c.L, l) + embedding_flops(c, l) + 2 * c.d_f * ((c.variant.head is True) * c.d_e + c.N_V) * l
    ),
    settings=("L", "d_in", "masking", "p_mask"),
    defaults={"tokenizer": "characters", "l_max": 64, "variant": "BERT", "L": 2, "init": "glorot"}
    | {"steps": 1000, "batch_size": 64},
)


def _ed_columns(params, batch: Batch, options: LoopOptions) -> Columns:
    x = batch.get("x_read", batch["x"])
    X = ed_hidden_state(batch["z"], x, params, z_length=batch["z_length"], **options)
    return Columns.of(X, params, next_tokens(batch["x"]))


def _ed_flops(c: EDTransformerConfig, l: int) -> int:
    layers = layer_flops(c, c.L_enc, l) + layer_flops(c, c.L_dec, l) + attention_flops(c, c.L_dec, l, l)
    return layers + 2 * c.N_V * c.d_e * l


ED = Task(
    name="ed",
    summary="sequence-to-sequence prediction, with Algorithm 8",
    records="pairs",
    config=EDTransformerConfig,
    init=init_ed_transformer,
    objective=Objective(
        columns=_ed_columns,
        weights=lambda batch: has_next(batch["x"], batch["x_length"]),
        routed={"7": in_sequence("z", "z_length"), "18": in_sequence("x", "x_length")},
    ),
    flops=_ed_flops,
    settings=("L_enc", "L_dec", "token_noise", "token_deletion"),
    defaults={"data": ("pronunciation",), "tokenizer": "characters", "l_max": 48, "steps": 1250, "batch_size": 64},
)
