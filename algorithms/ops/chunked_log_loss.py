"""The loss of each token, a chunk of the logits at a time, with its backward pass derived by hand.

The forward pass keeps only the log-sum-exp of each column's logits; the backward pass recomputes P from it.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, as_columns
from algorithms.machinery.hand_derived import hand_derived
from algorithms.machinery.platform import platform_of
from algorithms.machinery.sharding import Shares, devices_sharing
from algorithms.ops.linear import logits
from algorithms.ops.lookup import one_or_nan
from algorithms.ops.products import product_over
from algorithms.ops.softmax import capped

LOGITS_AT_ONCE = {"cpu": 2**21, "other": 2**29}
"""How many logits a device holds at once: on a CPU, as many as fit in its cache; elsewhere, 2 GiB in float32.

If all logits fit, XLA sees that the backward pass recomputes the same ones, and keeps them.
"""

LOGITS_OF_A_CHUNK = {"tpu": 9 * 2**24}
"""How many logits to compute at once if not all fit, where fewer than fit are faster (docs/notes/performance.md)."""

LANES = 128
"""Larger chunks are whole multiples of this, the width of a TPU's registers."""


def logits_at_once(X: Array) -> int:
    """How many logits of the columns X a device may hold at once."""
    return LOGITS_AT_ONCE.get(platform_of(X), LOGITS_AT_ONCE["other"])


def chunk_size(X: Array, n: int, *of_each: int) -> int:
    """How many of n rows or columns of the logits of X to compute at once; all n if a size is symbolic.

    Each row or column has as many logits as the product of ``of_each``.
    """
    if not are_numbers(n, *of_each):
        return n
    of_one, fitting = max(1, math.prod(of_each)), logits_at_once(X)
    if n * of_one <= fitting:
        return n
    fitting = max(1, min(fitting, LOGITS_OF_A_CHUNK.get(platform_of(X), fitting)) // of_one)
    unit = min(fitting, LANES)
    even = -(-n // chunk_count(n, fitting // unit * unit))
    return -(-even // unit) * unit


def chunk_count(n: int, at_once: int) -> int:
    """How many chunks of this size hold n rows or columns."""
    return 1 if at_once is n else -(-n // max(1, at_once))


def log_sum_exp_of(Y: Float[Array, "rows *columns"]) -> Float[Array, "*columns"]:
    """The log-sum-exp of each column; on a GPU in one pass over Y, which is in its memory, and not two."""
    return _in_one_pass(Y) if platform_of(Y) in ("gpu", "cuda") else jax.nn.logsumexp(Y, axis=0)


@jax.custom_jvp
def _in_one_pass(Y):
    """Largest entry and sum of exponentials are reduced together; a sum is rescaled when a larger entry is found."""

    def merged(a, b):
        (largest_a, sum_a), (largest_b, sum_b) = a, b
        largest = jnp.maximum(largest_a, largest_b)
        finite = jnp.where(jnp.isfinite(largest), largest, 0)
        return largest, sum_a * jnp.exp(largest_a - finite) + sum_b * jnp.exp(largest_b - finite)

    largest, total = jax.lax.reduce((Y, jnp.ones_like(Y)), (Y.dtype.type(-jnp.inf), Y.dtype.type(0)), merged, (0,))
    return largest + jnp.log(total)


@_in_one_pass.defjvp
def _(primals, tangents):
    return jax.jvp(functools.partial(jax.nn.logsumexp, axis=0), primals, tangents)


def is_token(first: int | Array, N_V: int, Y: Float[Array, "rows *columns"]) -> Bool[Array, "rows *ones"]:
    """Whether each row of logits, starting at row ``first``, belongs to a token and is not padding."""
    return as_columns(first + jnp.arange(Y.shape[0]) < N_V, Y)


def logits_of_rows(
    n: int,
    N_V: int,
    first: int | Array,
    X: Float[Array, "d_e *columns"],
    W: Array,
    b: Array | None,
    cap: float | None = None,
) -> Float[Array, "rows *columns"]:
    """Some of n rows of logits, starting at row ``first``; W and b contain only these rows.

    Rows of padding, after the N_V tokens, are −∞. With a cap c the logits are ``c tanh(Y/c)``.
    """
    Y = capped(logits(X, W, b), cap)
    return jnp.where(is_token(first, N_V, Y), Y, -jnp.inf) if n > N_V else Y


class _Residuals(NamedTuple):
    X: Array
    W_u: Array
    b_u: Array | None
    targets: Array
    log_sum_exp: Array  # of each column's logits


def _forward(label_smoothing, N_V, cap, X, W_u, b_u, targets):
    """The losses; if devices divide the vocabulary, their sums of exponentials are added up."""
    shares, n = Shares.of(W_u, X), W_u.shape[0]

    def of_device(X, W_u, b_u, targets):
        first_row = shares.first_row(W_u.shape[0])
        log_sum_exp, at_target = _of_rows(label_smoothing, n, N_V, cap, first_row, X, W_u, b_u, targets)
        if shares.rows:
            largest = shares.max_over_rows(log_sum_exp)
            log_sum_exp = largest + jnp.log(shares.sum_over_rows(jnp.exp(log_sum_exp - largest)))
        return log_sum_exp, shares.sum_over_rows(at_target)

    log_sum_exp, at_target = shares.each(of_device, X, W_u, b_u, targets, out=(shares.of_columns(),) * 2)
    losses = one_or_nan(targets, N_V).astype(log_sum_exp.dtype) * (log_sum_exp - at_target)
    return losses, _Residuals(X, W_u, b_u, targets, log_sum_exp)


def _of_rows(label_smoothing, n, N_V, cap, first_row, X, W_u, b_u, targets):
    """The log-sum-exp of some rows of logits, and the logits of the targets, a few tokens of every sequence at a time.

    W_u and b_u contain only these rows, starting at ``first_row``, of n rows in all; the first N_V rows are tokens.
    """
    l, of_each = X.shape[-1], (W_u.shape[0], *targets.shape[:-1])
    if len(of_each) > 1 and are_numbers(l, *of_each) and math.prod(of_each) > logits_at_once(X):
        # one token of every sequence is already too much: treat the columns of all sequences as one sequence
        columns = X.reshape(len(X), -1), W_u, b_u, targets.reshape(-1)
        return tuple(a.reshape(targets.shape) for a in _of_rows(label_smoothing, n, N_V, cap, first_row, *columns))
    c = chunk_size(X, l, *of_each)

    def of_chunk(i, done):
        first = jnp.minimum(i * c, l - c)  # the last chunk overlaps the one before it
        X_c, targets_c = (jax.lax.dynamic_slice_in_dim(a, first, c, axis=-1) for a in (X, targets))
        Y = logits_of_rows(n, N_V, first_row, X_c, W_u, b_u, cap)
        of_chunk = log_sum_exp_of(Y), _at_target(label_smoothing, N_V, first_row, targets_c, Y)
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(of_all, of_c, first, axis=-1)
            for of_all, of_c in zip(done, of_chunk, strict=True)
        )

    zeros = jnp.zeros_like(X, shape=targets.shape, dtype=accumulation_dtype(X.dtype))
    return jax.lax.fori_loop(0, chunk_count(l, c), of_chunk, (zeros, zeros))


def _at_target(s, N_V, first, targets, Y):
    """``(1 − s) Y[targets[t], t] + s/N_V Σ_v Y[v, t]``, over the rows of Y, which start at row ``first``."""
    entry = (1 - s) * of_target(first, targets, Y)
    return entry + s / N_V * jnp.where(is_token(first, N_V, Y), Y, 0).sum(axis=0) if s else entry


def of_target(
    first: int | Array, targets: Integer[Array, "*columns"], Y: Float[Array, "rows *columns"]
) -> Float[Array, "*columns"]:
    """The entry of each column's target; 0 if the target is not among the rows of Y, which start at row ``first``.

    A single CPU or GPU looks it up. Otherwise it is a sum, which several devices can share and a TPU's XLA fuses with
    other sums.
    """
    if platform_of(Y) != "tpu" and devices_sharing(Y) == 1 and are_numbers(*Y.shape):
        row = jnp.clip(targets - first, 0, Y.shape[0] - 1)
        return jnp.where(row == targets - first, jnp.take_along_axis(Y, row[None], axis=0)[0], 0)
    return jnp.where(_is_target(first, Y.shape[0], targets), Y, 0).sum(axis=0)


def _is_target(first, rows, targets):
    """Whether each of these rows of logits is the target of each column."""
    return as_columns(first + jnp.arange(rows), targets[None]) == targets[None]


def _backward(label_smoothing, N_V, cap, residuals: _Residuals, dlosses):
    """With Y = W_u X + b_u 1ᵀ the logits, P = softmax(Y), and the smoothed target q_t = (1 − s) 1_{x[t]} + s/N_V 1::

        ∂F/∂Y[:, t] = (P[:, t] − q_t) dloss[t]
        ∂F/∂X   = W_uᵀ ∂F/∂Y
        ∂F/∂W_u = ∂F/∂Y Xᵀ
        ∂F/∂b_u = ∂F/∂Y 1

    for a device's rows and columns, then summed over the devices. With a cap c, P = softmax(c tanh(Y/c)), and ∂F/∂Y has
    the factor 1 − tanh²(Y/c).

    Source: Radu 2026, §12.4.2, with the smoothing of §12.9.
    """
    X, W_u, b_u, targets, log_sum_exp = residuals
    shares, n = Shares.of(W_u, X), W_u.shape[0]
    dlosses = dlosses * one_or_nan(targets, N_V).astype(dlosses.dtype)

    def of_device(X, W_u, b_u, *columns):
        first_row = shares.first_row(W_u.shape[0])
        dtype = dlosses.dtype if shares.columns else W_u.dtype  # round only after summing over devices
        dX, dW_u, db_u = _through_rows(label_smoothing, n, N_V, cap, first_row, dtype, X, W_u, b_u, *columns)
        dX, dW_u = shares.sum_over_rows(dX).astype(X.dtype), shares.sum_over_columns(dW_u).astype(W_u.dtype)
        return dX, dW_u, None if b_u is None else shares.sum_over_columns(db_u).astype(b_u.dtype)

    return *shares.each(of_device, X, W_u, b_u, targets, log_sum_exp, dlosses, out=shares.of_gradients()), None


def _through_rows(label_smoothing, n, N_V, cap, first_row, dtype, X, W_u, b_u, targets, log_sum_exp, dlosses):
    """The gradients of X, W_u and b_u through some rows of logits, a chunk of rows at a time.

    The rows of P are recomputed from the log-sum-exp. A chunk of rows gives the whole gradient of its rows of W_u;
    chunks of columns would have to add up gradients of the size of W_u.
    """
    n_rows, wide = W_u.shape[0], log_sum_exp.dtype
    rows = chunk_size(X, n_rows, *targets.shape)
    columns = tuple(range(1, X.ndim))

    def of_chunk(i, gradients):
        dX, dW_u, db_u = gradients
        start = jnp.minimum(i * rows, n_rows - rows)  # the last chunk overlaps the one before it
        first = first_row + start
        W_v = jax.lax.dynamic_slice_in_dim(W_u, start, rows)
        b_v = None if b_u is None else jax.lax.dynamic_slice_in_dim(b_u, start, rows)
        Y = logits_of_rows(n, N_V, first, X, W_v, b_v, cap)
        P = jnp.exp(Y - log_sum_exp[None])
        q = (1 - label_smoothing) * _is_target(first, rows, targets).astype(P.dtype)
        q = q + label_smoothing / N_V * is_token(first, N_V, P).astype(P.dtype) if label_smoothing else q
        dY = (P - q) * dlosses[None]
        if cap is not None:  # 1 − tanh²(Y/c), from the capped logits; rows of padding have P = q = 0
            dY = dY * (1 - jnp.square(jnp.where(is_token(first, N_V, Y), Y, 0) / cap))
        is_new = as_columns(start + jnp.arange(rows) >= i * rows, dY)
        dW_v = product_over(dY.astype(X.dtype), X, (columns, columns), wide).astype(dtype)
        dX_v = product_over(W_v, jnp.where(is_new, dY, 0).astype(W_u.dtype), ((0,), (0,)), wide)
        return (
            dX + dX_v,
            jax.lax.dynamic_update_slice_in_dim(dW_u, dW_v, start, 0),
            jax.lax.dynamic_update_slice_in_dim(db_u, dY.sum(axis=columns), start, 0),
        )

    zeros = jnp.zeros_like(X, dtype=wide), jnp.zeros_like(W_u, dtype=dtype), jnp.zeros_like(log_sum_exp, shape=n_rows)
    return jax.lax.fori_loop(0, chunk_count(n_rows, rows), of_chunk, zeros)


chunked_log_loss = hand_derived(_forward, _backward, static=(0, 1, 2))
