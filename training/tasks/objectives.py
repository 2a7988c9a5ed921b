"""What is minimized: the four objectives over batches, as sums over tokens with weights.

| objective | predicts | batch |
|---|---|---|
| `d` | every next token (Algorithm 13) | x, and length or segment_ids, positions, loss_mask |
| `e` | the tokens that were masked (Algorithm 12) | x, x_masked, loss_mask, length |
| `ed` | every next token of the target, given the source (Algorithm 11) | z, z_length, x, x_length |
| `classify` | the class, from the first token's encoding (Radu 2026, §12.7) | x, length, label |

A loss is ``Σ w_t · nats_t`` over all tokens of a batch, and the trainer divides by ``Σ w_t``: padding, columns across
the border of two documents and the empty rows of an evaluation have weight 0. So a batch in k parts gives the same
loss and gradient as in one, whatever number of tokens each part has.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms import Variant, d_hidden_state, e_encoding, e_hidden_state, ed_hidden_state, log_loss
from algorithms.unembedding import logits, unembedding_matrix
from training.settings import Settings
from training.tasks.classification import ClassifierParams

Batch = Mapping[str, Array]


class Columns(NamedTuple):
    """The columns of a batch that are predicted.

    Attributes:
        X: hidden states, tokens as columns.
        W_u: the matrix that makes logits of them.
        b_u: the logits' bias, or None.
        targets: IDs to predict.
        weights: of each column, 0 where nothing is predicted.
    """

    X: Float[Array, "d B l"]
    W_u: Float[Array, "N d"]
    b_u: Float[Array, "N"] | None
    targets: Int[Array, "B l"]
    weights: Float[Array, "B l"]


class Totals(NamedTuple):
    """Sums over a batch: nats, predicted tokens, and how many of them were the likeliest."""

    nats: Float[Array, ""]
    weight: Float[Array, ""]
    correct: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """One of the four objectives.

    Attributes:
        task: its name on the command line.
        columns: from parameters, batch, keys of the sequences (None: no dropout) and the arguments of the hidden-state
            functions to the columns that are predicted.
        weights: from a batch to the weights of its columns.
    """

    task: str
    columns: Callable[..., Columns]
    weights: Callable[[Batch], Array]

    def loss(
        self,
        params: Any,
        batch: Batch,
        keys: Key[Array, "B"] | None,
        *,
        variant: Variant,
        implementation: str = "auto",
        label_smoothing: float = 0.0,
        remat: bool = False,
    ) -> Float[Array, ""]:
        """Return ``Σ w_t · nats_t`` over the batch.

        Args:
            params: the parameters.
            batch: arrays by name, as the data sets of `training.data.batches` make them.
            keys: one for each sequence, for dropout; None for none.
            variant: what differs from the pseudocode.
            implementation: how attention and the backward passes are computed.
            label_smoothing: share of the target that is spread over all tokens.
            remat: compute the activations of each layer again in the backward pass, instead of keeping them.
        """
        variant = variant.without_dropout() if keys is None else variant
        c = self.columns(params, batch, keys, variant=variant, implementation=implementation, remat=remat)
        return log_loss(c.X, c.W_u, c.targets, weights=c.weights, b_u=c.b_u, label_smoothing=label_smoothing)

    def totals(self, params: Any, batch: Batch, *, variant: Variant, implementation: str = "auto") -> Totals:
        """Return loss, weight and correct predictions of a batch, without dropout and label smoothing."""
        variant = variant.without_dropout()
        c = self.columns(params, batch, None, variant=variant, implementation=implementation)

        def of_sequence(X_targets_weights):
            X, targets, weights = X_targets_weights
            nats = log_loss(X, c.W_u, targets, weights=weights, b_u=c.b_u)
            return nats, jnp.sum(weights * (jnp.argmax(logits(X, c.W_u, c.b_u), axis=0) == targets))

        # one sequence after another: the logits of all of them are the largest array there would be
        nats, correct = jax.lax.map(of_sequence, (jnp.moveaxis(c.X, 1, 0), c.targets, c.weights))
        return Totals(nats.sum(), c.weights.sum(), correct.sum())


def _d_weights(batch: Batch) -> Array:
    if "loss_mask" in batch:
        return batch["loss_mask"].astype(jnp.float32)
    return _has_next(batch["x"], batch["length"])


def _has_next(x: Array, length: Array) -> Array:
    return (jnp.arange(1, x.shape[1] + 1)[None] < length[:, None]).astype(jnp.float32)


def _next(x: Array) -> Array:
    """x[t + 1] in column t; the last column has weight 0."""
    return jnp.roll(x, -1, axis=1)


def _d_columns(params, batch: Batch, keys, **options) -> Columns:
    packed = {"positions": batch.get("positions"), "segments": batch.get("segment_ids")}
    X = d_hidden_state(batch["x"], params, key=keys, **packed, **options)
    return Columns(X, unembedding_matrix(params), None, _next(batch["x"]), _d_weights(batch))


def _e_columns(params, batch: Batch, keys, **options) -> Columns:
    X = e_hidden_state(batch["x_masked"], params, key=keys, length=batch["length"], **options)
    return Columns(X, unembedding_matrix(params), params.b_u, batch["x"], _e_weights(batch))


def _e_weights(batch: Batch) -> Array:
    return batch["loss_mask"].astype(jnp.float32)


def _ed_columns(params, batch: Batch, keys, **options) -> Columns:
    X = ed_hidden_state(batch["z"], batch["x"], params, key=keys, z_length=batch["z_length"], **options)
    return Columns(X, unembedding_matrix(params), None, _next(batch["x"]), _ed_weights(batch))


def _ed_weights(batch: Batch) -> Array:
    return _has_next(batch["x"], batch["x_length"])


def _classify_columns(params: ClassifierParams, batch: Batch, keys, **options) -> Columns:
    X = e_encoding(batch["x"], params.encoder, key=keys, length=batch["length"], **options)[..., :1]
    weights = _classify_weights(batch)
    return Columns(X, params.W_c, params.b_c, jnp.maximum(batch["label"], 0)[:, None], weights)


def _classify_weights(batch: Batch) -> Array:
    return (batch["label"] >= 0).astype(jnp.float32)[:, None]


OBJECTIVES = {
    objective.task: objective
    for objective in (
        Objective(task="d", columns=_d_columns, weights=_d_weights),
        Objective(task="e", columns=_e_columns, weights=_e_weights),
        Objective(task="ed", columns=_ed_columns, weights=_ed_weights),
        Objective(task="classify", columns=_classify_columns, weights=_classify_weights),
    )
}


def cast(params: Any, dtype: str) -> Any:
    """Return the parameters in the dtype of the computation; gradients come back in float32."""
    return jax.tree.map(lambda array: array.astype(dtype), params)


def make_totals(objective: Objective, settings: Settings, variant: Variant) -> Callable[[Any, Batch], Totals]:
    """Return the function (params, batch) → sums over the batch, to be compiled, for evaluations."""

    def totals(params, batch):
        return objective.totals(cast(params, settings.dtype), batch, variant=variant)

    return totals
