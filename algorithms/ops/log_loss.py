"""The training loss of Algorithms 11-13, from the hidden state and W_u: per token, and as a weighted sum."""

from typing import Unpack

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer

from algorithms.machinery.arrays import AnyArray, accumulation_dtype, as_ids
from algorithms.machinery.contract import compiled
from algorithms.machinery.options import as_printed
from algorithms.notation import Cap, Choice, Count, Share
from algorithms.ops.activation import capped, log_softmax
from algorithms.ops.chunked_log_loss import chunked_log_loss, chunked_sum, of_target
from algorithms.ops.linear import logits, one_or_nan


@compiled
def log_loss(
    X: Float[AnyArray, "d_e *batch l"],
    W_u: Float[AnyArray, "N_V d_e"],
    targets: Integer[AnyArray, "*batch l"],
    *,
    weights: Float[AnyArray, "*batch l"] | Bool[AnyArray, "*batch l"] | None = None,
    b_u: Float[AnyArray, "N_V"] | None = None,
    label_smoothing: Share = 0.0,
    N_V: Count | None = None,
    cap: Cap = None,
    **options: Unpack[Choice],
) -> Float[Array, ""]:
    """``Σ_t w_t loss_t``, the weighted sum of `token_losses`; without weights, line 5 of Algorithms 11 and 13.

    A column with weight 0 and an invalid target or X (padding) is ignored, and its weight has gradient 0. The gradient
    of any other weight is the loss of its token. For next-token prediction give ``X[..., :-1]`` and ``x[..., 1:]``.

    Returns:
        the sum over all columns; it and its gradient are NaN if the target of a column that is not ignored is outside
        [0, N_V).

    Example:
        >>> round(log_loss(jnp.ones((1, 2)), jnp.zeros((4, 1)), jnp.array([0, 3])).item(), 4)
        2.7726

    Source: Phuong and Hutter 2022, line 5 of Algorithm 11.
    """
    targets, n = as_ids(targets), W_u.shape[0] if N_V is None else N_V
    wide = accumulation_dtype(X.dtype)
    if weights is None:
        weights = jnp.ones_like(X, shape=targets.shape, dtype=wide)
    else:
        is_valid = (targets >= 0) & (targets < n) & jnp.isfinite(X).all(axis=0)
        takes_part = (weights != 0) | is_valid
        X, targets = jnp.where(takes_part[None], X, 0), jnp.where(takes_part, targets, 0)
        weights = jnp.where(takes_part, weights.astype(wide), 0)
    weighted_sum = _printed_sum if as_printed() else chunked_sum
    return weighted_sum(label_smoothing, n, cap, X, W_u, b_u, targets, weights)


@compiled
def token_losses(
    X: Float[AnyArray, "d_e *batch l"],
    W_u: Float[AnyArray, "N_V d_e"],
    targets: Integer[AnyArray, "*batch l"],
    *,
    b_u: Float[AnyArray, "N_V"] | None = None,
    label_smoothing: Share = 0.0,
    N_V: Count | None = None,
    cap: Cap = None,
    **options: Unpack[Choice],
) -> Float[Array, "*batch l"]:
    """The loss of each token in nats, ``−log P[targets[t], t]`` with ``P = softmax(W_u X)``, computed in chunks of P.

    Label smoothing s mixes 1 − s of the target with s/N_V of every token:
    ``−((1 − s) log P[targets[t], t] + s/N_V Σ_v log P[v, t])``.

    Returns:
        a loss for each column, in at least float32; NaN for a target outside [0, N_V).

    Example:
        >>> token_losses(jnp.ones((1, 2)), jnp.zeros((4, 1)), jnp.array([0, 4])).round(4).tolist()
        [1.386299967765808, nan]

    Source: Phuong and Hutter 2022, line 5 of Algorithm 11; Radu 2026, §12.3.4 and §12.9.
    """
    losses = _printed if as_printed() else chunked_log_loss
    return losses(label_smoothing, W_u.shape[0] if N_V is None else N_V, cap, X, W_u, b_u, as_ids(targets))


def _printed(label_smoothing, N_V, cap, X, W_u, b_u, targets):
    s, t = label_smoothing, jnp.clip(targets, 0, N_V - 1)
    Y = logits(X, W_u[:N_V], None if b_u is None else b_u[:N_V])
    log_P = log_softmax(capped(Y, cap))
    losses = -(1 - s) * of_target(0, t, log_P)
    if s:
        losses = losses - s / N_V * log_P.sum(axis=0)
    return one_or_nan(targets, N_V).astype(losses.dtype) * losses


def _printed_sum(label_smoothing, N_V, cap, X, W_u, b_u, targets, weights):
    return (weights * _printed(label_smoothing, N_V, cap, X, W_u, b_u, targets)).sum()
