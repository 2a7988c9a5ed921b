"""Text classification: a linear map of the first token's encoding by Algorithm 9 (Radu 2026, §12.7)."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms import ETransformerConfig, ETransformerParams, e_encoding, init_e_transformer, unembedding
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import arrays_of
from algorithms.model.initialization import Scheme
from algorithms.notation import LoopOptions
from algorithms.ops.linear import linear
from training.tasks.flops import embedding_flops, layer_flops
from training.tasks.objectives import Batch, Columns, Objective, in_sequence
from training.tasks.task import Task


class ClassifierParams(NamedTuple):
    """An encoder, and the map from its first token's encoding, through its pooler if it has one (``tanh(W_pool X[:, 0]
    + b_pool)``), to the logits of the classes. The encoder's W_f, b_f, norm, W_u and b_u are for its pretraining.
    """

    encoder: ETransformerParams
    W_c: Float[Array, "N_C d_e"]
    b_c: Float[Array, "N_C"]

    def __declared__(self) -> "ClassifierParams":
        return arrays_of(ClassifierParams, W_c="unembedding")


def init_classifier(
    key: Key[Array, ""], config: ETransformerConfig, *, N_C: int, scheme: Scheme = "glorot"
) -> ClassifierParams:
    """Return initial parameters; W_c and b_c are 0, so that all classes are equally likely at first."""
    encoder = init_e_transformer(key, config, scheme=scheme)
    return ClassifierParams(encoder, jnp.zeros((N_C, config.d_e), jnp.float32), jnp.zeros(N_C, jnp.float32))


def class_probabilities(
    x: Int[AnyArray, "*batch l"], params: ClassifierParams, *, length: Int[Array, "*#batch"] | int | None = None
) -> Float[Array, "N_C *batch"]:
    """Return the probabilities of the classes for one text that starts with bos_token, or for each of a batch."""
    X = e_encoding(x, params.encoder, length=length)[..., :1]
    return unembedding(pooled(X, params.encoder)[..., 0], params.W_c, b_u=params.b_c)


def pooled(X: Float[Array, "d_e *batch 1"], encoder: ETransformerParams) -> Float[Array, "d_e *batch 1"]:
    """Return the classifier's input: the first token's encoding, through the encoder's pooler if it has one."""
    if encoder.W_pool is None:
        return X
    return jnp.tanh(linear(encoder.W_pool, X, encoder.b_pool))


def _columns(params: ClassifierParams, batch: Batch, options: LoopOptions) -> Columns:
    X = e_encoding(batch["x"], params.encoder, length=batch["length"], **options)[..., :1]
    return Columns(pooled(X, params.encoder), params.W_c, params.b_c, jnp.maximum(batch["label"], 0)[:, None])


CLASSIFY = Task(
    name="classify",
    summary="text classification, with the encoder of Algorithm 9",
    records="labeled",
    config=ETransformerConfig,
    init=init_classifier,
    objective=Objective(
        columns=_columns,
        weights=lambda batch: (batch["label"] >= 0).astype(jnp.float32)[:, None],
        routed={"7": in_sequence()},
    ),
    flops=lambda c, l: layer_flops(c, c.L, l) + embedding_flops(c, l),
    settings=("L", "d_in", "token_noise", "token_deletion"),
    defaults={"data": ("sms-spam",), "L": 2, "d_e": 64, "d_mlp": 256, "dropout": 0.1, "steps": 300, "batch_size": 32},
)
