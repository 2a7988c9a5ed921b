"""The linear map with a bias, ``W X + b 1ᵀ``, by which the paper applies weight matrices, and the lookup of columns.

Products are left to XLA, except on a CPU.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Integer

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, as_columns, as_ids, in_rows
from algorithms.machinery.devices import devices_sharing, for_this_machine, multiplies_bfloat16, platform_of
from algorithms.machinery.options import hand_derived

PRODUCT = "WX"
"""The default ``checkpoint_name`` of a linear map's result, which ``remat`` may keep."""


def linear(
    W: Float[Array, "*rows d_in"] | Any,
    X: Float[Array, "d_in *columns"],
    b: Float[Array, "*rows"] | None = None,
    *,
    name: str = PRODUCT,
) -> Float[Array, "..."] | Any:
    """``W X + b 1ᵀ``, shape ``[*rows, *columns]``: the same affine map of every column.

    Several stacked matrices W (the heads of an attention) act as one matrix with more rows. ``name`` is the
    ``checkpoint_name`` of the result. Without W, the result is X.

    Source: lines 1-3 of Algorithm 4, and every other affine line.
    """
    if W is None:
        return X
    return checkpoint_name((_affine if hasattr(W, "times") else _linear)(W, X, b), name)


def _affine(W, X, b):
    Y = product(W, X)
    return Y if b is None else Y + as_columns(b, Y)


def _backward(residuals, dY):
    """With dY the gradient of the loss with respect to Y = W X + b 1ᵀ::

        ∂F/∂W = dY Xᵀ
        ∂F/∂X = Wᵀ dY
        ∂F/∂b = dY 1

    Source: Radu 2026, §12.4.3, transposed: tokens are columns here.
    """
    W, X, b = residuals
    dtype = accumulation_dtype(dY.dtype)
    rows, columns = tuple(range(W.ndim - 1)), range(1, X.ndim)
    columns_of_Y = tuple(range(len(rows), dY.ndim))
    dW = product_over(dY, X, (columns_of_Y, columns), dtype)
    dX = product_over(W, dY, (rows, rows), X.dtype)
    db = None if b is None else dY.sum(axis=columns_of_Y, dtype=dtype).astype(b.dtype)
    return dW.astype(W.dtype), dX.astype(X.dtype), db


_linear = hand_derived(None, _backward, value=_affine)


def tied_logits(
    X: Float[Array, "d_e *columns"], W_e: Float[Array, "d_e N_V"], b_u: Float[Array, "N_V"] | None = None
) -> Float[Array, "N_V *columns"]:
    """``W_eᵀ X (+ b_u 1ᵀ)``, in at least float32.

    Computed as ``Xᵀ W_e``, for which XLA's CPU backend reads W_e as stored. Without the barriers it would transpose W_e
    every time.
    """
    as_is = jax.lax.optimization_barrier if platform_of(X) == "cpu" else lambda Y: Y
    dtype, rows = accumulation_dtype(X.dtype), as_is(jnp.moveaxis(X, 0, -1))
    Y = jnp.moveaxis(as_is(product_over(rows, W_e, ((rows.ndim - 1,), (0,)), dtype)), -1, 0)
    return Y if b_u is None else Y + as_columns(b_u, Y).astype(dtype)


def logits(
    X: Float[Array, "d_e *columns"], W_u: Float[Array, "N_V d_e"] | Any, b_u: Float[Array, "N_V"] | None = None
) -> Float[Array, "N_V *columns"]:
    """``W_u X (+ b_u 1ᵀ)``, in at least float32."""
    dtype = accumulation_dtype(X.dtype)
    Y = product(W_u, X, dtype)
    return Y if b_u is None else Y + as_columns(b_u, Y).astype(dtype)


NARROWEST = 16
"""The least number of rows, columns and terms of a product that the processor computes in bfloat16."""

LEAST = 2**16
"""The least number of entries in a group of rows; XLA's CPU backend runs a batch of smaller groups on one core."""


def product(
    W: Float[Array, "*rows d_in"] | Any, X: Float[Array, "d_in *columns"], dtype: jnp.dtype | None = None
) -> Float[Array, "..."] | Any:
    """``W X``, shape ``[*rows, *columns]``, accumulated in ``dtype``; by ``W.times`` if W is another form of a matrix.

    XLA's CPU backend runs most products with a single column on one core, but batched products on several: for such a
    product, groups of rows of W form a batch.
    """
    times = getattr(W, "times", None)
    if times is not None:
        return times(X, dtype)
    groups = _groups(W) if math.prod(X.shape[1:]) == 1 else 1
    at_once = functools.partial(jnp.tensordot, axes=1, preferred_element_type=dtype)
    if groups == 1:
        return _accumulated(at_once, W, X, ((W.ndim - 1,), (0,)), dtype)
    in_groups = functools.partial(_by_groups, groups, dtype)
    return jax.lax.platform_dependent(W, X, cpu=in_groups, default=at_once)


def product_over(A: Array, B: Array, axes: tuple[Sequence[int], Sequence[int]], dtype: jnp.dtype) -> Array:
    """The product of A and B, summed over these axes of each, which are consecutive, accumulated in ``dtype``.

    XLA's CPU backend copies a factor to sum over several axes, but not if they are merged into one.
    """
    if len(axes[0]) > 1 and platform_of(A) == "cpu" and devices_sharing(A) == 1 and are_numbers(*A.shape):
        A, B, axes = _merged(A, axes[0]), _merged(B, axes[1]), (axes[0][:1], axes[1][:1])
    at_once = functools.partial(jax.lax.dot_general, dimension_numbers=(axes, ((), ())), preferred_element_type=dtype)
    return _accumulated(at_once, A, B, axes, dtype)


def _merged(A: Array, axes: Sequence[int]) -> Array:
    first, end = axes[0], axes[-1] + 1
    return A.reshape(*A.shape[:first], math.prod(A.shape[first:end]), *A.shape[end:])


def _accumulated(at_once: Callable[..., Array], A: Array, B: Array, axes: Any, dtype: jnp.dtype | None) -> Array:
    """The product ``at_once(A, B)``, summed over these axes (None: a batch of products), in ``dtype``, or by default in
    the factors' dtype.

    XLA's CPU backend lacks some products whose results are wider than their factors, and since jaxlib 0.11 it sums some
    products of narrow factors in their own type; so the factors are widened first. Few processors multiply bfloat16.
    """
    to = jnp.result_type(A, B) if dtype is None else dtype
    if axes is not None and A.dtype == B.dtype == jnp.bfloat16 and _is_native(A, B, axes):
        by_cpu = functools.partial(_in_float32, axes=axes, dtype=to)
    elif to == A.dtype and to.itemsize >= 4:
        return at_once(A, B)
    else:
        wide = accumulation_dtype(to)

        def by_cpu(A, B):
            return at_once(A.astype(wide), B.astype(wide), preferred_element_type=wide).astype(to)

    return jax.lax.platform_dependent(A, B, cpu=by_cpu, default=at_once)


def _is_native(A: Array, B: Array, axes: Any) -> bool:
    """Whether a CPU multiplies matrices of bfloat16 as they are: none too narrow, on one device."""
    if devices_sharing(A) > 1 or not (multiplies_bfloat16() and for_this_machine()):
        return False
    n = math.prod(A.shape[i] for i in axes[0])
    return are_numbers(*A.shape, *B.shape) and min(n, A.size // max(1, n), B.size // max(1, n)) >= NARROWEST


def _in_float32(A: Array, B: Array, *, axes: Any, dtype: jnp.dtype) -> Array:
    of_A, of_B = axes
    free = [size for a, summed in ((A, of_A), (B, of_B)) for i, size in enumerate(a.shape) if i not in summed]
    n = math.prod(A.shape[i] for i in of_A)
    left = in_rows(A.reshape(-1, n) if of_A[-1] == A.ndim - 1 else A.reshape(n, -1).T)
    right, of_right = (B.reshape(n, -1), 0) if of_B[0] == 0 else (B.reshape(-1, n), 1)
    product = jax.lax.dot_general(left, right, (((1,), (of_right,)), ((), ())), preferred_element_type=jnp.float32)
    return product.astype(dtype).reshape(free)


def _groups(W) -> int:
    rows = W.size // W.shape[-1]
    return max((g for g in (2, 4, 8, 16) if rows % g == 0 and W.size >= g * LEAST), default=1)


def _by_groups(groups: int, dtype, W, X):
    W_g, X_g = W.reshape(groups, -1, W.shape[-1]), jnp.broadcast_to(X.reshape(-1, 1), (groups, W.shape[-1], 1))
    at_once = functools.partial(jnp.matmul, preferred_element_type=dtype)
    return _accumulated(at_once, W_g, X_g, None, dtype).reshape(*W.shape[:-1], *X.shape[1:])


ONE_HOT_LIMIT = 1024
"""The number of columns up to which the gradient of the matrix is a matrix product, not a scatter."""


def columns(W: Float[Array, "d_e n"]) -> Any:
    """The matrix W, whose columns are looked up by ``[:, v]``, for one index v or an array of them.

    For an index outside [0, n) the value and the gradient are NaN, never those of another column.
    """
    return _Columns(W)


@dataclasses.dataclass(frozen=True)
class _Columns:
    W: Array

    def __getitem__(self, rows_and_columns: Any) -> Array:
        _, v = rows_and_columns
        return _lookup(self.W, as_ids(v))


def _columns(W, v):
    E = W.at[:, v].get(mode="clip")
    return E * one_or_nan(v, W.shape[1])[None].astype(E.dtype)


def one_or_nan(v: Integer[Array, "*shape"], n: int) -> Float[Array, "*shape"]:
    """1 for an index in [0, n), NaN for any other: a factor that makes a value and its gradient NaN."""
    return jnp.where((v >= 0) & (v < n), 1.0, jnp.nan)


def _backward_of_lookup(residuals, dE):
    """The gradient of a column of W is the sum over all positions of its token::

        ∂F/∂W[:, j] = Σ_{t: v[t] = j} dE[:, t]

    For a small vocabulary the product of dE and the one-hot matrix of v is faster.

    Source: Radu 2026, §12.4.8.
    """
    W, v = residuals
    d_e, n = W.shape
    dE = dE.astype(accumulation_dtype(dE.dtype))
    dE, v = dE * one_or_nan(v, n)[None].astype(dE.dtype), jnp.clip(v, 0, n - 1)
    if are_numbers(*v.shape):  # JAX cannot merge axes of symbolic sizes
        dE, v = dE.reshape(d_e, -1), v.reshape(-1)
    if n <= ONE_HOT_LIMIT:
        dW = jnp.tensordot(dE, jax.nn.one_hot(v, n, dtype=dE.dtype), axes=v.ndim)
    else:
        dW = jnp.zeros_like(dE, shape=(n, d_e)).at[v].add(jnp.moveaxis(dE, 0, -1)).T
    return dW.astype(W.dtype), None


_lookup = hand_derived(None, _backward_of_lookup, value=_columns)
