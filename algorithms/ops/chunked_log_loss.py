"""The loss of each token, and its weighted sum, a chunk of tokens at a time, with backward passes derived by hand.

The gradients of a weighted sum are known up to its own cotangent, which scales them, so its forward pass computes them
from each chunk's logits before these are discarded. The gradients of single tokens' losses need their cotangents first,
so their backward pass recomputes the logits.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, as_columns
from algorithms.machinery.devices import Shares, devices_sharing, platform_of
from algorithms.machinery.options import hand_derived, with_derivative_of
from algorithms.ops.activation import capped
from algorithms.ops.linear import logits, one_or_nan, product_over

LOGITS_AT_ONCE = {"cpu": 2**21, "other": 2**29}
"""How many logits a device holds at once: on a CPU, as many as fit in its cache; elsewhere, 2 GiB in float32."""

LOGITS_OF_A_CHUNK = {"tpu": 9 * 2**24}
"""How many logits to compute at once if not all fit, where fewer than fit are faster (docs/notes/performance.md)."""

COLUMNS_WITH_GRADIENTS = 512
"""The fewest columns of a chunk with gradients: every chunk adds to the whole gradient of W_u."""

LANES = 128
"""Larger chunks are whole multiples of this, the width of a TPU's registers."""


def logits_at_once(X: Array) -> int:
    """How many logits of the columns X a device may hold at once."""
    return LOGITS_AT_ONCE.get(platform_of(X), LOGITS_AT_ONCE["other"])


def chunk_size(X: Array, l: int, at_once: int, *of_each: int) -> int:
    """How many of l tokens of the logits of X to compute at once, if at_once logits fit; all l if a size is symbolic.

    A token has as many logits as the product of ``of_each``.
    """
    of_one = math.prod(of_each)
    if not are_numbers(l, of_one) or l * of_one <= at_once:
        return l
    fitting = max(1, min(at_once, LOGITS_OF_A_CHUNK.get(platform_of(X), at_once)) // of_one)
    unit = min(fitting, LANES)
    even = -(-l // chunk_count(l, fitting // unit * unit))
    return -(-even // unit) * unit


def chunk_count(n: int, at_once: int) -> int:
    """How many chunks of this size hold n tokens."""
    return 1 if at_once is n else -(-n // max(1, at_once))


def log_sum_exp_of(Y: Float[Array, "rows *columns"]) -> Float[Array, "*columns"]:
    """The log-sum-exp of each column; on a GPU in one pass over Y, which is in its memory, and not two."""
    log_sum_exp = functools.partial(jax.nn.logsumexp, axis=0)
    if platform_of(Y) not in ("gpu", "cuda"):
        return log_sum_exp(Y)
    return with_derivative_of(log_sum_exp, _in_one_pass(jax.lax.stop_gradient(Y)), Y)


def _in_one_pass(Y):
    """Largest entry and sum of exponentials are reduced together; a sum is rescaled when a larger entry is found."""

    def merged(a, b):
        (largest_a, sum_a), (largest_b, sum_b) = a, b
        largest = jnp.maximum(largest_a, largest_b)
        finite = jnp.where(jnp.isfinite(largest), largest, 0)
        return largest, sum_a * jnp.exp(largest_a - finite) + sum_b * jnp.exp(largest_b - finite)

    largest, total = jax.lax.reduce((Y, jnp.ones_like(Y)), (Y.dtype.type(-jnp.inf), Y.dtype.type(0)), merged, (0,))
    return largest + jnp.log(total)


def _over_devices(shares, log_sum_exp):
    """The log-sum-exp over the devices that divide the rows of Y."""
    if not shares.rows:
        return log_sum_exp
    largest = shares.max_over_rows(jax.lax.stop_gradient(log_sum_exp))
    return largest + jnp.log(shares.sum_over_rows(jnp.exp(log_sum_exp - largest)))


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
    return as_columns(first + jnp.arange(rows), targets[None]) == targets[None]


def _of_chunks(label_smoothing, N_V, cap, X, W_u, b_u, targets, weights=None):
    """The loss of each token; with weights also the gradients of ``F = Σ_t weights[t] loss[t]``, wide.

    With Y = W_u X + b_u 1ᵀ the logits, P = softmax(Y), and the smoothed target q_t = (1 − s) 1_{x[t]} + s/N_V 1::

        ∂F/∂Y[:, t] = (P[:, t] − q_t) weights[t]
        ∂F/∂X   = W_uᵀ ∂F/∂Y
        ∂F/∂W_u = ∂F/∂Y Xᵀ
        ∂F/∂b_u = ∂F/∂Y 1

    for a device's rows and columns, then summed over the devices. With a cap c, P = softmax(c tanh(Y/c)), and ∂F/∂Y has
    the factor 1 − tanh²(Y/c).

    Source: Radu 2026, §12.4.2, with the smoothing of §12.9.
    """
    shares, n = Shares.of(W_u, X), W_u.shape[0]

    def of_device(X, W_u, b_u, *columns):
        return _of_columns(label_smoothing, n, N_V, cap, shares, X, W_u, b_u, *columns)

    if weights is None:
        return shares.each(of_device, X, W_u, b_u, targets, out=shares.of_columns())
    out = shares.of_columns(), *shares.of_gradients()
    return shares.each(of_device, X, W_u, b_u, targets, weights, out=out)


def _of_columns(s, n, N_V, cap, shares, X, W_u, b_u, targets, weights=None):
    """What `_of_chunks` returns, of a device's rows of W_u and b_u, of n in all, and its columns of X."""
    (*batch, l), (rows, _) = targets.shape, W_u.shape
    at_once = logits_at_once(X) if weights is None else max(logits_at_once(X), COLUMNS_WITH_GRADIENTS * rows)
    if batch and are_numbers(l, rows, *batch) and math.prod(batch) * rows > at_once:
        # one token of every sequence is already too much: treat the columns of all sequences as one sequence
        columns = [a if a is None else a.reshape(-1) for a in (targets, weights)]
        found = _of_columns(s, n, N_V, cap, shares, X.reshape(len(X), -1), W_u, b_u, *columns)
        if weights is None:
            return found.reshape(targets.shape)
        losses, dX, *others = found
        return losses.reshape(targets.shape), dX.reshape(X.shape), *others
    c, wide = chunk_size(X, l, at_once, rows, *batch), accumulation_dtype(X.dtype)
    first_row, axes = shares.first_row(rows), tuple(range(1, X.ndim))

    def of_new(i, columns):
        """These columns of chunk i, but 0 where it overlaps the chunk before it."""
        if c is l or l % c == 0:
            return columns
        is_new = jnp.arange(c) >= i * c - jnp.minimum(i * c, l - c)
        return jnp.where(is_new.reshape(*(1,) * len(axes), c), columns, 0)

    def of_chunk(i, done):
        losses, gradients = done
        first = jnp.minimum(i * c, l - c)  # the last chunk overlaps the one before it
        part = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=c, axis=-1)
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=first, axis=-1)
        X_c, x = part(X), part(targets)
        Y = logits_of_rows(n, N_V, first_row, X_c, W_u, b_u, cap)
        log_sum_exp = _over_devices(shares, log_sum_exp_of(Y))
        at_target = shares.sum_over_rows(_at_target(s, N_V, first_row, x, Y))
        losses = put(losses, one_or_nan(x, N_V).astype(wide) * (log_sum_exp - at_target))
        if weights is None:
            return losses, gradients
        q = (1 - s) * _is_target(first_row, rows, x).astype(wide)
        q = q + s / N_V * is_token(first_row, N_V, Y).astype(wide) if s else q
        dY = (jnp.exp(Y - log_sum_exp[None]) - q) * (part(weights) * one_or_nan(x, N_V).astype(wide))[None]
        if cap is not None:  # 1 − tanh²(Y/c), from the capped logits; rows of padding have P = q = 0
            dY = dY * (1 - jnp.square(jnp.where(is_token(first_row, N_V, Y), Y, 0) / cap))
        dX, dW_u, db_u = gradients
        dX = put(dX, product_over(W_u, dY.astype(W_u.dtype), ((0,), (0,)), wide))
        dW_u = dW_u + product_over(dY.astype(X.dtype), of_new(i, X_c), (axes, axes), wide)
        return losses, (dX, dW_u, None if b_u is None else db_u + of_new(i, dY).sum(axis=axes))

    zeros = jnp.zeros_like(X, shape=targets.shape, dtype=wide)
    of_none = tuple(None if weights is None or a is None else jnp.zeros_like(a, dtype=wide) for a in (X, W_u, b_u))
    losses, (dX, dW_u, db_u) = jax.lax.fori_loop(0, chunk_count(l, c), of_chunk, (zeros, of_none))
    if weights is None:
        return losses
    sums = (None if a is None else shares.sum_over_columns(a) for a in (dW_u, db_u))
    return losses, shares.sum_over_rows(dX), *sums


class _Residuals(NamedTuple):
    X: Array
    W_u: Array
    b_u: Array | None
    targets: Array


def _rounded(residuals, *gradients):
    return *(None if d is None else d.astype(a.dtype) for d, a in zip(gradients, residuals, strict=False)), None


def _forward(label_smoothing, N_V, cap, *arguments):
    return _of_chunks(label_smoothing, N_V, cap, *arguments), _Residuals(*arguments)


def _backward(label_smoothing, N_V, cap, residuals: _Residuals, dlosses):
    _, *gradients = _of_chunks(label_smoothing, N_V, cap, *residuals, dlosses)
    return _rounded(residuals, *gradients)


def _value_of_sum(label_smoothing, N_V, cap, *arguments):
    *arguments, weights = arguments
    return (weights * _of_chunks(label_smoothing, N_V, cap, *arguments)).sum()


def _forward_of_sum(label_smoothing, N_V, cap, *arguments):
    losses, *gradients = _of_chunks(label_smoothing, N_V, cap, *arguments)
    *arguments, weights = arguments
    return (weights * losses).sum(), (_Residuals(*arguments), gradients, losses)


def _backward_of_sum(label_smoothing, N_V, cap, residuals, g):
    """The gradients that the forward pass made, times the cotangent; the gradient of a weight is its token's loss."""
    arguments, gradients, losses = residuals
    return *_rounded(arguments, *(None if d is None else g * d for d in gradients)), g * losses


chunked_log_loss = hand_derived(_forward, _backward, static=(0, 1, 2))
chunked_sum = hand_derived(_forward_of_sum, _backward_of_sum, static=(0, 1, 2), value=_value_of_sum)
