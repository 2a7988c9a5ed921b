"""The encoder-decoder of Algorithm 8, trained to predict the target given the source, as in Algorithm 11."""

from jax import Array

from algorithms import EDTransformerConfig, ed_hidden_state, init_ed_transformer
from training.tasks.objectives import Batch, Columns, Objective, has_next, in_sequence, next_tokens
from training.tasks.task import Task, attention_flops, layer_flops


def _columns(params, batch: Batch, keys, **options) -> Columns:
    x = batch.get("x_read", batch["x"])
    X = ed_hidden_state(batch["z"], x, params, key=keys, z_length=batch["z_length"], **options)
    return Columns.of(X, params, next_tokens(batch["x"]))


def _weights(batch: Batch) -> Array:
    return has_next(batch["x"], batch["x_length"])


def _flops(c: EDTransformerConfig, l: int) -> int:
    layers = (c.L_enc + c.L_dec) * layer_flops(c, l) + c.L_dec * attention_flops(c, l, l)
    return layers + 2 * c.N_V * c.d_e * l


ED = Task(
    name="ed",
    summary="sequence-to-sequence prediction, with Algorithm 8",
    records="pairs",
    config=EDTransformerConfig,
    init=init_ed_transformer,
    objective=Objective(
        columns=_columns,
        weights=_weights,
        routed={"7": in_sequence("z", "z_length"), "18": in_sequence("x", "x_length")},
    ),
    flops=_flops,
    settings=("L_enc", "L_dec", "token_noise", "token_deletion"),
    defaults={"data": ("pronunciation",), "tokenizer": "characters", "l_max": 48, "steps": 1250, "batch_size": 64},
)
