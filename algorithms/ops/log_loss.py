"""The training loss of Algorithms 11-13, from the hidden state and W_u, and its backward pass."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, as_columns, as_ids
from algorithms.machinery.hand_derived import hand_derived
from algorithms.machinery.platform import platform_of
from algorithms.machinery.sharding import Shares, devices_sharing
from algorithms.notation import Count, Implementation, Share
from algorithms.ops.linear import logits, product_over

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
    N_V: Count | None = None,
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
        N_V: tokens, where the rows of W_u behind theirs are padding; None: there is none.
        implementation: how it is computed; see ``IMPLEMENTATIONS``.

    Returns:
        the sum over all columns; NaN, as its gradient is, if a target that takes part is outside [0, N_V).

    Example:
        >>> import jax.numpy as jnp
        >>> round(log_loss(jnp.ones((1, 2)), jnp.zeros((4, 1)), jnp.array([0, 3])).item(), 4)
        2.7726

    Source: Phuong and Hutter 2022, line 5 of Algorithm 11; Radu 2026, §12.3.4 and §12.9.
    """
    options = label_smoothing, implementation, N_V
    if weights is None:
        return token_losses(X, W_u, targets, b_u, *options).sum()
    X, targets = jnp.where(weights[None] == 0, 0, X), jnp.where(weights == 0, 0, as_ids(targets))
    return (weights * token_losses(X, W_u, targets, b_u, *options)).sum()


def token_losses(
    X: Float[Array, "d_e *columns"],
    W_u: Float[Array, "n d_e"],
    targets: Integer[Array, "*columns"],
    b_u: Float[Array, "n"] | None,
    label_smoothing: float,
    implementation: str,
    N_V: int | None = None,
) -> Float[Array, "*columns"]:
    """``−log P[targets[t], t]`` of every column, smoothed, in float32 at least; rows of W_u behind N_V are padding."""
    losses = _as_printed if implementation == "paper" else _in_chunks
    return losses(label_smoothing, W_u.shape[0] if N_V is None else N_V, X, W_u, b_u, as_ids(targets))


def _as_printed(label_smoothing, N_V, X, W_u, b_u, targets):
    log_P = jax.nn.log_softmax(logits(X, W_u[:N_V], None if b_u is None else b_u[:N_V]), axis=0)
    return -_valid(N_V, targets, log_P) * _at_target(label_smoothing, N_V, 0, jnp.clip(targets, 0, N_V - 1), log_P)


def _valid(N_V, targets, Y):
    """1, and NaN for a target that a column has not."""
    return jnp.where((targets >= 0) & (targets < N_V), 1, jnp.nan).astype(Y.dtype)


def _at_target(s, N_V, first, targets, Y):
    """``(1 − s) Y[targets[t], t] + s/N_V Σ_v Y[v, t]`` of the rows of Y, which are those from ``first`` on."""
    of_target = (1 - s) * _of_target(first, targets, Y)
    return of_target + s / N_V * jnp.where(_is_token(first, N_V, Y), Y, 0).sum(axis=0) if s else of_target


def _of_target(first, targets, Y):
    """The entry of each column's target, 0 where another device has it.

    A CPU looks it up; elsewhere a sum lets the rows lie on several devices, and is part of the other sums over them.
    """
    if platform_of(Y) == "cpu" and devices_sharing(Y) == 1:
        row = jnp.clip(targets - first, 0, Y.shape[0] - 1)
        return jnp.where(row == targets - first, jnp.take_along_axis(Y, row[None], axis=0)[0], 0)
    return jnp.where(_is_target(first, Y.shape[0], targets), Y, 0).sum(axis=0)


def _is_target(first, rows, targets):
    """Which of some rows of logits each column's target is."""
    return as_columns(first + jnp.arange(rows), targets[None]) == targets[None]


def _is_token(first, N_V, Y):
    """Which rows of logits are of tokens, and not of padding."""
    return as_columns(first + jnp.arange(Y.shape[0]) < N_V, Y)


def _logits(n, N_V, first, X, W, b):
    """The logits of those of n rows that stand from ``first`` on; −∞ of the padding behind the N_V tokens."""
    Y = logits(X, W, b)
    return jnp.where(_is_token(first, N_V, Y), Y, -jnp.inf) if n > N_V else Y


class _Residuals(NamedTuple):
    X: Array
    W_u: Array
    b_u: Array | None
    targets: Array
    log_sum_exp: Array  # of each column's logits


def _forward(label_smoothing, N_V, X, W_u, b_u, targets):
    """The losses; where devices divide the vocabulary, their sums of exponentials are added up."""
    shares, n = Shares.of(W_u, X), W_u.shape[0]

    def of_device(X, W_u, b_u, targets):
        first_row = shares.first_row(W_u.shape[0])
        log_sum_exp, at_target = _of_rows(label_smoothing, n, N_V, first_row, X, W_u, b_u, targets)
        if shares.rows:
            largest = shares.max_over_rows(log_sum_exp)
            log_sum_exp = largest + jnp.log(shares.sum_over_rows(jnp.exp(log_sum_exp - largest)))
        return log_sum_exp, shares.sum_over_rows(at_target)

    columns, rows = shares.of_columns(), shares.of_rows()
    specs = shares.of_columns(None), shares.of_weights(), None if b_u is None else rows, columns
    log_sum_exp, at_target = shares.each(of_device, (X, W_u, b_u, targets), specs, (columns, columns))
    losses = _valid(N_V, targets, log_sum_exp) * (log_sum_exp - at_target)
    return losses, _Residuals(X, W_u, b_u, targets, log_sum_exp)


def _of_rows(label_smoothing, n, N_V, first_row, X, W_u, b_u, targets):
    """The log-sum-exp of some rows of logits, and what stands at the target, a few tokens of every sequence at a time.

    Args:
        label_smoothing: s.
        n: the number of all rows.
        N_V: how many of those are of tokens.
        first_row: which of them the first row of W_u is.
        X: columns.
        W_u: some of the n rows.
        b_u: their biases, or None.
        targets: of the columns.
    """
    l, of_each = X.shape[-1], (W_u.shape[0], *targets.shape[:-1])
    if len(of_each) > 1 and are_numbers(l, *of_each) and math.prod(of_each) > _logits_at_once(X):
        # not one token of every sequence: the columns of all sequences are one sequence's
        columns = X.reshape(len(X), -1), W_u, b_u, targets.reshape(-1)
        return tuple(a.reshape(targets.shape) for a in _of_rows(label_smoothing, n, N_V, first_row, *columns))
    c = _at_once(X, l, *of_each)

    def of_chunk(i, done):
        first = jnp.minimum(i * c, l - c)  # the last chunk overlaps the one before it
        X_c, targets_c = (jax.lax.dynamic_slice_in_dim(a, first, c, axis=-1) for a in (X, targets))
        Y = _logits(n, N_V, first_row, X_c, W_u, b_u)
        of_chunk = jax.nn.logsumexp(Y, axis=0), _at_target(label_smoothing, N_V, first_row, targets_c, Y)
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(of_all, of_c, first, axis=-1)
            for of_all, of_c in zip(done, of_chunk, strict=True)
        )

    zeros = jnp.zeros_like(X, shape=targets.shape, dtype=accumulation_dtype(X.dtype))
    return jax.lax.fori_loop(0, _chunks(l, c), of_chunk, (zeros, zeros))


def _backward(label_smoothing, N_V, residuals: _Residuals, dlosses):
    """With Y = W_u X + b_u 1ᵀ the logits, P = softmax(Y), and the smoothed target q_t = (1 − s) 1_{x[t]} + s/N_V 1::

        ∂F/∂Y[:, t] = (P[:, t] − q_t) dloss[t]
        ∂F/∂X   = W_uᵀ ∂F/∂Y
        ∂F/∂W_u = ∂F/∂Y Xᵀ
        ∂F/∂b_u = ∂F/∂Y 1

    of a device's rows and columns; what the devices have is added up.

    Source: Radu 2026, §12.4.2, with the smoothing of §12.9.
    """
    X, W_u, b_u, targets, log_sum_exp = residuals
    shares, n = Shares.of(W_u, X), W_u.shape[0]
    dlosses = jnp.where((targets >= 0) & (targets < N_V), dlosses, dlosses * jnp.nan)

    def of_device(X, W_u, b_u, *columns):
        first_row = shares.first_row(W_u.shape[0])
        dtype = dlosses.dtype if shares.columns else W_u.dtype  # what is added up is not rounded before
        dX, dW_u, db_u = _through_rows(label_smoothing, n, N_V, first_row, dtype, X, W_u, b_u, *columns)
        dX, dW_u = shares.sum_over_rows(dX).astype(X.dtype), shares.sum_over_columns(dW_u).astype(W_u.dtype)
        return dX, dW_u, None if b_u is None else shares.sum_over_columns(db_u).astype(b_u.dtype)

    columns, rows = shares.of_columns(), shares.of_rows()
    specs = shares.of_columns(None), shares.of_weights(), None if b_u is None else rows, columns, columns, columns
    out = shares.of_columns(None), shares.of_weights(gradient=True), None if b_u is None else rows
    return *shares.each(of_device, (X, W_u, b_u, targets, log_sum_exp, dlosses), specs, out), None


def _through_rows(label_smoothing, n, N_V, first_row, dtype, X, W_u, b_u, targets, log_sum_exp, dlosses):
    """The gradients by X, W_u and b_u through some rows of logits, a chunk of them at a time.

    The rows of P are computed again from the log-sum-exp: each row of W_u gets its gradient at once, where chunks of
    columns would add up matrices of the size of W_u.
    """
    n_rows, wide = W_u.shape[0], log_sum_exp.dtype
    rows = _at_once(X, n_rows, *targets.shape)
    columns = tuple(range(1, X.ndim))

    def of_chunk(i, gradients):
        dX, dW_u, db_u = gradients
        start = jnp.minimum(i * rows, n_rows - rows)  # the last chunk overlaps the one before it
        first = first_row + start
        W_v = jax.lax.dynamic_slice_in_dim(W_u, start, rows)
        b_v = None if b_u is None else jax.lax.dynamic_slice_in_dim(b_u, start, rows)
        P = jnp.exp(_logits(n, N_V, first, X, W_v, b_v) - log_sum_exp[None])
        q = (1 - label_smoothing) * _is_target(first, rows, targets)
        q = q + label_smoothing / N_V * _is_token(first, N_V, P) if label_smoothing else q
        dY = jnp.where(dlosses[None] == 0, 0, (P - q) * dlosses[None])
        is_new = as_columns(start + jnp.arange(rows) >= i * rows, dY)
        dW_v = product_over(dY.astype(X.dtype), X, (columns, columns), wide).astype(dtype)
        dX_v = product_over(W_v, jnp.where(is_new, dY, 0).astype(W_u.dtype), ((0,), (0,)), wide)
        return (
            dX + dX_v,
            jax.lax.dynamic_update_slice_in_dim(dW_u, dW_v, start, 0),
            jax.lax.dynamic_update_slice_in_dim(db_u, dY.sum(axis=columns), start, 0),
        )

    zeros = jnp.zeros_like(X, dtype=wide), jnp.zeros_like(W_u, dtype=dtype), jnp.zeros_like(log_sum_exp, shape=n_rows)
    return jax.lax.fori_loop(0, _chunks(n_rows, rows), of_chunk, zeros)


def likeliest(
    X: Float[Array, "d_e B l"], W_u: Float[Array, "n d_e"], b_u: Float[Array, "n"] | None, N_V: int | None = None
) -> Integer[Array, "B l"]:
    """The token of the largest logit of every column; rows of W_u behind N_V are padding."""
    shares, n = Shares.of(W_u, X), W_u.shape[0]

    def of_device(X, W_u, b_u):
        first = shares.first_row(W_u.shape[0])

        def of_sequence(X):  # one after another: the logits of all of them are the largest array there would be
            Y = _logits(n, n if N_V is None else N_V, first, X, W_u, b_u)
            return Y.max(axis=0), first + jnp.argmax(Y, axis=0)

        largest, token = jax.lax.map(of_sequence, jnp.moveaxis(X, 1, 0))
        return -shares.max_over_rows(jnp.where(largest == shares.max_over_rows(largest), -token, -n))

    specs = shares.of_columns(None), shares.of_weights(), None if b_u is None else shares.of_rows()
    return shares.each(of_device, (X, W_u, b_u), specs, shares.of_columns())


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
    return LOGITS_AT_ONCE.get(platform_of(X), LOGITS_AT_ONCE["other"])


def _chunks(n, at_once):
    return 1 if at_once is n else -(-n // max(1, at_once))


def _losses_in_chunks(*arguments):
    return _forward(*arguments)[0]


_in_chunks = hand_derived(_losses_in_chunks, _forward, _backward, static=(0, 1))
