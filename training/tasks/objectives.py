"""Objectives of the tasks: losses of batches, as weighted sums over tokens.

| objective | predicts | batch |
|---|---|---|
| `d` | every next token (Algorithm 13) | x, and length or segment_ids, positions, loss_mask |
| `e` | the tokens that were masked (Algorithm 12) | x, x_masked, loss_mask, length |
| `ed` | every next token of the target, given the source (Algorithm 11) | z, z_length, x, x_length |
| `classify` | the class, from the first token's encoding (Radu 2026, §12.7) | x, length, label |

A loss is ``Σ w_t · nats_t`` over all tokens of a batch, and the trainer divides by ``Σ w_t``: padding, columns across
the border of two documents and the empty rows of an evaluation have weight 0. So a batch in k parts gives the same
loss and gradient as in one, however many tokens each part has.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms import Variant, log_loss
from algorithms.notation import Remat
from algorithms.ops.chunked_logits import likeliest
from training.settings import Settings

Batch = Mapping[str, Array]


class Columns(NamedTuple):
    """The columns of a batch, and their targets."""

    X: Float[Array, "d B l"]  # hidden states, tokens as columns
    W_u: Float[Array, "N d"]  # the matrix that makes logits of them
    b_u: Float[Array, "N"] | None  # the logits' bias, or None
    targets: Int[Array, "B l"]  # IDs to predict


class Totals(NamedTuple):
    """Sums over a batch: nats, predicted tokens, and how many of them were the likeliest."""

    nats: Float[Array, ""]
    weight: Float[Array, ""]
    correct: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """The objective of a task."""

    # from parameters, batch, keys of the sequences (None: no dropout) and the arguments of the hidden-state functions
    # to the columns of the batch
    columns: Callable[..., Columns]
    weights: Callable[[Batch], Array]  # from a batch to the weight of each column, 0 where nothing is predicted

    def loss(
        self,
        params: Any,
        batch: Batch,
        keys: Key[Array, "B"] | None,
        *,
        variant: Variant,
        implementation: str = "auto",
        label_smoothing: float = 0.0,
        remat: Remat = False,
        unroll: bool = False,
        N_V: int | None = None,
    ) -> Float[Array, ""]:
        """Return ``Σ w_t · nats_t`` over a batch as the data sets of `training.data.batches` make them; with keys,
        one for each sequence, dropout is on. The parameters may have more than N_V columns for tokens; see
        `training.mesh.padding`.
        """
        variant = variant.without_dropout() if keys is None else variant
        options = {"variant": variant, "implementation": implementation, "remat": remat, "unroll": unroll}
        c = self.columns(params, batch, keys, **options)
        options = {"label_smoothing": label_smoothing, "N_V": N_V, "cap": variant.unembedding.cap}
        return log_loss(c.X, c.W_u, c.targets, weights=self.weights(batch), b_u=c.b_u, **options)

    def totals(
        self, params: Any, batch: Batch, *, variant: Variant, implementation: str = "auto", N_V: int | None = None
    ) -> Totals:
        """Return loss, weight and correct predictions of a batch, without dropout and label smoothing."""
        variant = variant.without_dropout()
        c = self.columns(params, batch, None, variant=variant, implementation=implementation)
        weights = self.weights(batch)
        nats = log_loss(c.X, c.W_u, c.targets, weights=weights, b_u=c.b_u, N_V=N_V, cap=variant.unembedding.cap)
        return Totals(nats, weights.sum(), jnp.sum(weights * (likeliest(c.X, c.W_u, c.b_u, N_V) == c.targets)))


def has_next(x: Int[Array, "B l"], length: Int[Array, "B"]) -> Float[Array, "B l"]:
    """Return 1 for every token of each sequence but the last, 0 for the others."""
    return (jnp.arange(1, x.shape[1] + 1)[None] < length[:, None]).astype(jnp.float32)


def next_tokens(x: Int[Array, "B l"]) -> Int[Array, "B l"]:
    """Return x[t + 1] in column t; the last column has no next token and must have weight 0."""
    return jnp.roll(x, -1, axis=1)


def cast(params: Any, dtype: str) -> Any:
    """Return the parameters in the dtype of the computation; gradients come back in float32."""
    return jax.tree.map(lambda array: array.astype(dtype), params)


def make_totals(
    objective: Objective, settings: Settings, variant: Variant, *, N_V: int | None = None
) -> Callable[[Any, Batch], Totals]:
    """Return the function (params, batch) → sums over the batch, to be compiled, for evaluations."""

    def totals(params, batch):
        return objective.totals(cast(params, settings.dtype), batch, variant=variant, N_V=N_V)

    return totals
