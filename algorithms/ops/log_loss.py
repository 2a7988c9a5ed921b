"""The training loss of Algorithms 11-13, from the hidden state and W_u, and its backward pass."""

import math
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from algorithms.machinery.contract import Range
from algorithms.machinery.hand_derived import hand_derived
from algorithms.machinery.lowering import devices_sharing, platform_of
from algorithms.notation import Implementation, accumulation_dtype, are_numbers, as_columns, as_ids
from algorithms.ops.linear import logits, product_over

Share = Annotated[float, Range("a share in [0, 1)", lambda s: 0 <= s < 1)]

LOGITS_AT_ONCE = {"cpu": 2**21, "other": 2**29}
"""How many logits a device holds at once: what stays in a CPU's cache; elsewhere, 2 GiB of them in float32.

Where these are all, XLA sees that the backward pass computes the same ones again, and keeps them.
"""

LANES = 128
"""Larger chunks are whole multiples of so many: what a TPU's registers hold."""


def log_loss(
    X: Float[Array, "d_e *batch l"],
    W_u: Float[Array, "N_V d_e"],
    targets: Integer[Array, "*batch l"],
    *,
    weights: Float[Array, "*batch l"] | None = None,
    b_u: Float[Array, "N_V"] | None = None,
    label_smoothing: Share = 0.0,
    implementation: Implementation = "auto",
) -> Float[Array, ""]:
    """``−Σ_t w_t log P[targets[t], t]`` with ``P = softmax(W_u X)``, in nats, without all of P at once.

    With label smoothing s the target is 1 − s of the token and s/N_V of every token:
    ``−Σ_t w_t ((1 − s) log P[targets[t], t] + s/N_V Σ_v log P[v, t])``.

    Args:
        X: hidden state, tokens as columns: ``X[..., :-1]`` and ``targets = x[..., 1:]`` for next-token prediction.
        W_u: the unembedding matrix.
        targets: for each column, the ID of the token to predict.
        weights: of each column; None is 1 throughout. A column of weight 0 takes no part, whatever stands there.
        b_u: an output bias, as in BERT.
        label_smoothing: s.
        implementation: how it is computed; see ``IMPLEMENTATIONS``.

    Returns:
        the sum over all columns; NaN, as its gradient is, if a target that takes part is outside [0, N_V).

    Example:
        >>> import jax.numpy as jnp
        >>> round(log_loss(jnp.ones((1, 2)), jnp.zeros((4, 1)), jnp.array([0, 3])).item(), 4)
        2.7726

    Source: Phuong and Hutter 2022, line 5 of Algorithm 11; Radu 2026, §12.3.4 and §12.9.
    """
    if weights is None:
        return token_losses(X, W_u, targets, b_u, label_smoothing, implementation).sum()
    X, targets = jnp.where(weights[None] == 0, 0, X), jnp.where(weights == 0, 0, as_ids(targets))
    return (weights * token_losses(X, W_u, targets, b_u, label_smoothing, implementation)).sum()


def token_losses(
    X: Float[Array, "d_e *columns"],
    W_u: Float[Array, "N_V d_e"],
    targets: Integer[Array, "*columns"],
    b_u: Float[Array, "N_V"] | None,
    label_smoothing: float,
    implementation: str,
) -> Float[Array, "*columns"]:
    """``−log P[targets[t], t]`` of every column, smoothed, in float32 at least."""
    x, s = as_ids(targets), label_smoothing
    if implementation == "paper":
        return _as_printed(s, X, W_u, b_u, x)
    if x.ndim > 1 and are_numbers(X.size, len(W_u)) and math.prod(x.shape[:-1]) * len(W_u) > _logits_at_once(X):
        # not one token of every sequence: the columns of all sequences are one sequence's
        return _in_chunks(s, X.reshape(len(X), -1), W_u, b_u, x.reshape(-1)).reshape(x.shape)
    return _in_chunks(s, X, W_u, b_u, x)


def _as_printed(label_smoothing, X, W_u, b_u, targets):
    log_P = jax.nn.log_softmax(logits(X, W_u, b_u), axis=0)
    return -_smoothed(label_smoothing, _of_target(log_P, targets), log_P)


def _of_target(Y, targets):
    """The entry of each column's target; NaN for a target that the column has not.

    A CPU looks it up; elsewhere a sum lets the rows lie on several devices, and is part of the other sums over them.
    """
    n = Y.shape[0]
    valid = jnp.where((targets >= 0) & (targets < n), 1, jnp.nan).astype(Y.dtype)
    row = jnp.clip(targets, 0, n - 1)
    if platform_of(Y) == "cpu" and devices_sharing(Y) == 1:
        entry = jnp.take_along_axis(Y, row[None], axis=0)[0]
    else:
        entry = jnp.where(_is_target(0, n, row), Y, 0).sum(axis=0)
    return valid * entry


def _is_target(first, rows, targets):
    """Which of some rows of logits each column's target is."""
    return as_columns(first + jnp.arange(rows), targets[None]) == targets[None]


def _smoothed(s, of_target, Y):
    return (1 - s) * of_target + s * Y.mean(axis=0) if s else of_target


class _Residuals(NamedTuple):
    X: Array
    W_u: Array
    b_u: Array | None
    targets: Array
    log_sum_exp: Array  # of each column's logits


def _forward(label_smoothing, X, W_u, b_u, targets):
    """The losses of a few tokens of every sequence at a time."""
    l, N_V = X.shape[-1], W_u.shape[0]
    c = _at_once(X, l, N_V, *targets.shape[:-1])

    def of_chunk(i, done):
        first = jnp.minimum(i * c, l - c)  # the last chunk overlaps the one before it
        X_c, targets_c = (jax.lax.dynamic_slice_in_dim(a, first, c, axis=-1) for a in (X, targets))
        Y = logits(X_c, W_u, b_u)
        log_sum_exp = jax.nn.logsumexp(Y, axis=0)
        losses = log_sum_exp - _smoothed(label_smoothing, _of_target(Y, targets_c), Y)
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(of_all, of_c, first, axis=-1)
            for of_all, of_c in zip(done, (losses, log_sum_exp), strict=True)
        )

    zeros = jnp.zeros_like(X, shape=targets.shape, dtype=accumulation_dtype(X.dtype))
    losses, log_sum_exp = jax.lax.fori_loop(0, _chunks(l, c), of_chunk, (zeros, zeros))
    return losses, _Residuals(X, W_u, b_u, targets, log_sum_exp)


def _backward(label_smoothing, residuals: _Residuals, dlosses):
    """With Y = W_u X + b_u 1ᵀ the logits, P = softmax(Y), and the smoothed target q_t = (1 − s) 1_{x[t]} + s/N_V 1::

        ∂F/∂Y[:, t] = (P[:, t] − q_t) dloss[t]
        ∂F/∂X   = W_uᵀ ∂F/∂Y
        ∂F/∂W_u = ∂F/∂Y Xᵀ
        ∂F/∂b_u = ∂F/∂Y 1

    for a chunk of the vocabulary at a time, whose rows of P are computed again from the log-sum-exp: each row of W_u
    gets its gradient at once, where chunks of columns would add up matrices of the size of W_u.

    Source: Radu 2026, §12.4.2, with the smoothing of §12.9.
    """
    X, W_u, b_u, targets, log_sum_exp = residuals
    N_V, dtype = W_u.shape[0], log_sum_exp.dtype
    rows = _at_once(X, N_V, *targets.shape)
    columns = tuple(range(1, X.ndim))
    dlosses = jnp.where((targets >= 0) & (targets < N_V), dlosses, dlosses * jnp.nan)

    def of_chunk(i, gradients):
        dW_u, db_u, dX = gradients
        first = jnp.minimum(i * rows, N_V - rows)  # the last chunk overlaps the one before it
        W_v = jax.lax.dynamic_slice_in_dim(W_u, first, rows)
        b_v = None if b_u is None else jax.lax.dynamic_slice_in_dim(b_u, first, rows)
        P = jnp.exp(logits(X, W_v, b_v) - log_sum_exp[None])
        q = (1 - label_smoothing) * _is_target(first, rows, targets) + label_smoothing / N_V
        dY = jnp.where(dlosses[None] == 0, 0, (P - q) * dlosses[None])
        is_new = as_columns(first + jnp.arange(rows) >= i * rows, dY)
        dW_v = product_over(dY.astype(X.dtype), X, (columns, columns), dtype).astype(W_u.dtype)
        dX_v = product_over(W_v, jnp.where(is_new, dY, 0).astype(W_u.dtype), ((0,), (0,)), dtype)
        return (
            jax.lax.dynamic_update_slice_in_dim(dW_u, dW_v, first, 0),
            jax.lax.dynamic_update_slice_in_dim(db_u, dY.sum(axis=columns), first, 0),
            dX + dX_v,
        )

    zeros = jnp.zeros_like(W_u), jnp.zeros_like(log_sum_exp, shape=N_V), jnp.zeros_like(X, dtype=dtype)
    dW_u, db_u, dX = jax.lax.fori_loop(0, _chunks(N_V, rows), of_chunk, zeros)
    return dX.astype(X.dtype), dW_u, None if b_u is None else db_u.astype(b_u.dtype), None


def _at_once(X: Array, n, *of_each):
    """How many of n rows or columns of logits are computed at once: all where a size is not known."""
    if not are_numbers(n, *of_each):
        return n
    fitting = max(1, _logits_at_once(X) // max(1, math.prod(of_each)))
    if fitting >= n:
        return n
    unit = min(fitting, LANES)
    even = -(-n // _chunks(n, fitting // unit * unit))
    return -(-even // unit) * unit


def _logits_at_once(X: Array) -> int:
    return LOGITS_AT_ONCE.get(platform_of(X), LOGITS_AT_ONCE["other"]) * devices_sharing(X)


def _chunks(n, at_once):
    return 1 if at_once is n else -(-n // max(1, at_once))


def _losses_in_chunks(*arguments):
    return _forward(*arguments)[0]


_in_chunks = hand_derived(_losses_in_chunks, _forward, _backward, static=(0,))
