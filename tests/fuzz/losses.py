"""The loss for random sizes, weights, paddings, smoothing, caps and chunks: against NumPy, and against "paper"."""

import contextlib
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.ops import chunked_log_loss
from algorithms.ops.log_loss import log_loss  # not compiled, so that each size of chunks is traced
from tests.fuzz.comparing import BOUNDS, assert_near, chance, normal, one_of

__all__ = ["check"]


def expected_losses(X, W_u, b_u, targets, smoothing, cap):
    """Of each column, by the definition."""
    Y = np.tensordot(W_u, X, 1) + b_u.reshape(-1, *(1,) * (X.ndim - 1))
    Y = Y if cap is None else cap * np.tanh(Y / cap)
    log_P = Y - Y.max(axis=0) - np.log(np.exp(Y - Y.max(axis=0)).sum(axis=0))
    at_target = np.take_along_axis(log_P, targets[None], axis=0)[0]
    return -(1 - smoothing) * at_target - smoothing * log_P.mean(axis=0)


@contextlib.contextmanager
def in_chunks_of(at_once):
    """At most this many logits at once, with gradients as well."""
    chunks = mock.patch.dict(chunked_log_loss.LOGITS_AT_ONCE, {"cpu": at_once})
    with chunks, mock.patch.object(chunked_log_loss, "COLUMNS_WITH_GRADIENTS", 1):
        yield


def check(rng: np.random.Generator) -> None:
    """Value, gradients and, sometimes, second derivatives of one case."""
    batch = one_of(rng, (), (int(rng.integers(1, 4)),), (2, int(rng.integers(1, 3))))
    N_V, d_e, l = (int(n) for n in rng.integers(1, (40, 6, 12)))
    rows = N_V + (int(rng.integers(9)) if chance(rng, 0.4) else 0)
    dtype = one_of(rng, "float64", "float64", "float32", "bfloat16")
    X, W_u = normal(rng, d_e, *batch, l, dtype=dtype), normal(rng, rows, d_e, dtype=dtype)
    b_u = normal(rng, rows, dtype=dtype) if chance(rng, 0.5) else None
    targets = rng.integers(N_V, size=(*batch, l))
    weights = rng.standard_normal((*batch, l)) * (rng.random((*batch, l)) < 0.7) if chance(rng, 0.7) else None
    options: dict[str, Any] = {
        "label_smoothing": one_of(rng, 0.0, 0.1, 0.9),
        "N_V": N_V if rows > N_V or chance(rng, 0.3) else None,
        "cap": one_of(rng, None, None, 0.7, 20.0),
    }
    hidden = np.zeros((*batch, l), bool) if weights is None else (weights == 0) & (rng.random((*batch, l)) < 0.5)
    given = np.where(hidden, one_of(rng, -1, rows, 10**6), targets)
    X_given = jnp.where(jnp.asarray(hidden) & chance(rng, 0.5), jnp.nan, X)
    arguments = {"X": X_given, "W_u": W_u, "b_u": b_u, "weights": weights}
    arguments = {name: jnp.asarray(a) for name, a in arguments.items() if a is not None}
    narrow = one_of(rng, "int32", "int64")

    def loss(arguments, how):
        return log_loss(**arguments, targets=jnp.asarray(given, narrow), implementation=how, **options)

    at_once = int(rng.integers(1, 2 * rows * l))
    how = one_of(rng, "paper", "auto", "auto")
    what = f"{how}, {dtype}, X {X.shape}, {rows} rows, {at_once} at once, {options}"
    with in_chunks_of(at_once):
        value, gradients = jax.jit(jax.value_and_grad(lambda a: loss(a, how)))(arguments)
    wide = [np.asarray(a, np.float64) for a in (X, W_u[:N_V], jnp.zeros(N_V) if b_u is None else b_u[:N_V])]
    losses = expected_losses(*wide, targets, options["label_smoothing"], options["cap"])
    w = np.ones((*batch, l)) if weights is None else weights
    size = float(np.abs(w * losses).sum()) + 1
    assert abs(float(value) - (w * losses).sum()) <= BOUNDS[dtype] * size, f"value of {what}"
    if weights is not None:
        assert_near(gradients["weights"], np.where(hidden, 0, losses), BOUNDS[dtype], f"gradient by weights of {what}")
    exact = {name: a.astype(jnp.float64) for name, a in arguments.items()}
    assert_near(gradients, jax.jit(jax.grad(lambda a: loss(a, "paper")))(exact), BOUNDS[dtype], f"gradients of {what}")
    if dtype == "float64" and chance(rng, 0.3):
        _check_twice(loss, arguments, rng, at_once, what)


def _check_twice(loss, arguments, rng, at_once, what):
    v = {name: normal(rng, *a.shape) for name, a in arguments.items()}

    def product(how):
        def along(a):
            gradient = jax.grad(lambda a: loss(a, how) ** 2)(a)
            return sum(jnp.vdot(gradient[name], v[name]) for name in a)

        return jax.jit(jax.grad(along))(arguments)

    with in_chunks_of(at_once):
        actual = product("auto")
    assert_near(actual, product("paper"), 1e-8, f"second derivatives of {what}")
