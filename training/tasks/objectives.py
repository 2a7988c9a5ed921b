"""Objectives of the tasks: losses of batches, summed over tokens.

| objective | predicts | batch |
|---|---|---|
| `d` | every next token (Algorithm 13) | x, and length or segment_ids, loss_mask |
| `e` | the tokens that were masked (Algorithm 12) | x, x_masked, loss_mask, length |
| `ed` | every next token of the target, given the source (Algorithm 11) | z, z_length, x, x_length |
| `classify` | the class, from the first token's encoding (Radu 2026, §12.7) | x, length, label |

A loss is ``Σ w_t · nats_t`` over all tokens of a batch, and the trainer divides by ``Σ w_t``. Padding, targets in the
next document and the empty rows of an evaluation have weight 0. So a batch gives the same loss and gradient in k parts
as in one, however many tokens each part has.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Integer, Key

from algorithms import Variant, log_loss
from algorithms.inside import record
from algorithms.lines import Experts
from algorithms.machinery.devices import Shares
from algorithms.notation import LoopOptions
from algorithms.ops.chunked_log_loss import logits_of_rows
from training.settings import REMAT, Settings

Batch = Mapping[str, Array]

DEFAULT: LoopOptions = {}
"""Default options of hidden states."""
FIRST_WITH_BFLOAT16 = 8
"""The compute capability of NVIDIA's first GPUs with products of bfloat16: Ampere."""


class Columns(NamedTuple):
    """The hidden states of a batch, its unembedding and its targets."""

    X: Float[Array, "d B l"]  # hidden states, tokens as columns
    W_u: Float[Array, "N d"]  # the unembedding matrix
    b_u: Float[Array, "N"] | None  # the logits' bias, or None
    targets: Int[Array, "B l"]  # IDs to predict
    cap: float | None = None  # c, for logits ``c tanh(y/c)``, or None

    @staticmethod
    def of(X: Float[Array, "d B l"], theta: Any, targets: Int[Array, "B l"]) -> "Columns":
        """Return hidden states and targets with the unembedding of θ."""
        unembedding = theta.variant.unembedding
        return Columns(X, unembedding.matrix(theta), theta.b_u, targets, unembedding.cap)


class Losses(NamedTuple):
    """Sums over a batch: nats, and further losses of a model that has them, for each predicted token."""

    total: Float[Array, ""]  # what training minimizes: nats, the balancing loss, and weight · mtp
    nats: Float[Array, ""]
    balance: Float[Array, ""] | None  # of experts, times its coefficient; None if the model has none
    mtp: Float[Array, ""] | None  # nats of the head for the token after the next; None if the model has none


class Totals(NamedTuple):
    """Sums over a batch: nats, predicted tokens, and correct ones (the target is the likeliest token)."""

    nats: Float[Array, ""]
    weight: Float[Array, ""]
    correct: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """The objective of a task."""

    # (parameters, batch, options, with a key for each sequence if there is dropout) → Columns
    columns: Callable[[Any, Batch, LoopOptions], Columns]
    weights: Callable[[Batch], Array]  # batch → weight of each column, 0 if nothing is predicted there
    # (X of the columns, parameters, batch, options) → the Columns of the head for the token after the next, and their
    # weights; None: the task has no such head
    mtp: Callable[[Array, Any, Batch, LoopOptions], tuple[Columns, Array]] | None = None
    # number of the line with the MLP → (batch → 1 for each of its columns that is in a sequence, 0 for padding)
    routed: Mapping[str, Callable[[Batch], Array]]

    def losses(
        self,
        params: Any,
        batch: Batch,
        options: LoopOptions = DEFAULT,
        *,
        label_smoothing: float = 0,
        N_V: int | None = None,
    ) -> Losses:
        """Return ``Σ w_t · nats_t`` over a batch of `training.data.batches`, and the further losses of the model: the
        balancing loss of experts with a coefficient of it, and that of the head for the token after the next. Dropout
        needs a key for each sequence; tokens from N_V on are padding.
        """
        variant = variant_of(params)
        line = next((line for line in variant.mlps if isinstance(line, Experts)), None)
        weights, balance, mtp = self.weights(batch), None, None
        if line is not None and line.balance:
            names = [f"{symbol}@{number}" for number in self.routed for symbol in ("router", "G")]
            c, seen = record(self.columns, *names)(params, batch, options)
            each = [
                line.balancing_loss(seen[f"router@{number}"], seen[f"G@{number}"], counted(batch))
                for number, counted in self.routed.items()
            ]
            balance = line.balance * weights.sum() * sum(each)
        else:
            c = self.columns(params, batch, options)

        def nats_of(c, weights):
            smoothing = {"label_smoothing": label_smoothing, "N_V": N_V, "cap": c.cap}
            return log_loss(c.X, c.W_u, c.targets, weights=weights, b_u=c.b_u, **smoothing)

        total = nats = nats_of(c, weights)
        if balance is not None:
            total = total + balance
        if self.mtp is not None and variant.mtp:
            mtp = nats_of(*self.mtp(c.X, params, batch, options))
            total = total + variant.mtp.weight * mtp
        return Losses(total, nats, balance, mtp)

    def totals(self, params: Any, batch: Batch, *, N_V: int | None = None) -> Totals:
        """Return the sums over a batch, without dropout and label smoothing."""
        c = self.columns(params, batch, DEFAULT)
        weights = self.weights(batch)
        nats = log_loss(c.X, c.W_u, c.targets, weights=weights, b_u=c.b_u, N_V=N_V, cap=c.cap)
        return Totals(nats, weights.sum(), jnp.sum(weights * (likeliest(c.X, c.W_u, c.b_u, N_V) == c.targets)))


def variant_of(params: Any) -> Variant:
    """Return the variant of a task's parameters."""
    nodes = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, Variant))
    return next(node for node in nodes if isinstance(node, Variant))


def in_sequence(x: str = "x", length: str = "length") -> Callable[[Batch], Array]:
    """Return the function of a batch that says where its sequences have tokens; without lengths, everywhere."""

    def of(batch):
        t, lengths = jnp.arange(batch[x].shape[1]), batch.get(length)
        within = jnp.ones(batch[x].shape, bool) if lengths is None else t[None] < lengths[:, None]
        return within.astype(jnp.float32)

    return of


def has_next(x: Int[Array, "B l"], length: Int[Array, "B"]) -> Float[Array, "B l"]:
    """Return 1 for every token of a sequence except its last, and 0 for the last and the padding."""
    return (jnp.arange(1, x.shape[1] + 1)[None] < length[:, None]).astype(jnp.float32)


def next_tokens(x: Int[Array, "B l"]) -> Int[Array, "B l"]:
    """Return x[t + 1] in column t; the last column has no next token, and must have weight 0."""
    return jnp.roll(x, -1, axis=1)


def options_of(settings: Settings, keys: Key[Array, "B"] | None) -> LoopOptions:
    """Return how a training computes hidden states; dropout needs a key for each sequence."""
    return {"key": keys, "dropout": settings.dropout, "remat": REMAT[settings.remat], "unroll": settings.unroll}


def resolved(dtype: str) -> str:
    """Return the type of the computation: "auto" is bfloat16 on TPUs and on GPUs that have it, otherwise float32."""
    if dtype != "auto":
        return dtype
    device = jax.devices()[0]
    capability = re.match(r"\d+", str(getattr(device, "compute_capability", "")))  # of NVIDIA's GPUs; AMD's is a name
    is_old = capability is not None and int(capability[0]) < FIRST_WITH_BFLOAT16
    return "bfloat16" if device.platform in ("gpu", "tpu") and not is_old else "float32"


def cast(params: Any, dtype: str) -> Any:
    """Return the parameters in the dtype of the computation; gradients stay float32."""
    return jax.tree.map(lambda array: array.astype(resolved(dtype)), params)


def make_totals(objective: Objective, settings: Settings, *, N_V: int | None = None) -> Callable[[Any, Batch], Totals]:
    """Return the function (params, batch) → sums over the batch, to be compiled for evaluations."""

    def totals(params, batch):
        return objective.totals(cast(params, settings.dtype), batch, N_V=N_V)

    return totals


def likeliest(
    X: Float[Array, "d_e B l"], W_u: Float[Array, "n d_e"], b_u: Float[Array, "n"] | None, N_V: int | None = None
) -> Integer[Array, "B l"]:
    """Return the token of the largest logit of every column; rows of W_u after the first N_V are padding."""
    shares, n = Shares.of(W_u, X), W_u.shape[0]

    def of_device(X, W_u, b_u):
        first = shares.first_row(W_u.shape[0])

        def of_sequence(X):  # one sequence after another, since the logits of all would be a huge array
            Y = logits_of_rows(n, n if N_V is None else N_V, first, X, W_u, b_u)
            return Y.max(axis=0), first + jnp.argmax(Y, axis=0)

        largest, token = jax.lax.map(of_sequence, jnp.moveaxis(X, 1, 0))
        return -shares.max_over_rows(jnp.where(largest == shares.max_over_rows(largest), -token, -n))

    return shares.each(of_device, X, W_u, b_u, out=shares.of_columns())
