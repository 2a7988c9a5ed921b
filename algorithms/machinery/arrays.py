"""Small helpers for arrays: token IDs, columns, memory layout, and the dtype of sums."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import ArrayLike
from jaxtyping import Integer, Shaped

if TYPE_CHECKING:
    AnyArray = Array | Any  # NumPy's, too; without Any, type checkers would want bodies to serve both kinds
else:
    AnyArray = Array  # what the body of a compiled function gets


def as_ids(x: ArrayLike) -> Integer[Array, "..."]:
    """Token IDs in JAX's default integer type, which holds every ID of a vocabulary: uint8 cannot hold ``N_V − 1``."""
    return jnp.asarray(x).astype(int)


def as_columns(b: Shaped[Array, "*rows"], X: Shaped[Array, "*rows_and_columns"]) -> Shaped[Array, "*rows_and_ones"]:
    """``b 1ᵀ``: the vector ``b``, shaped to broadcast over the columns of ``X`` and at least as precise as ``X``."""
    if jnp.issubdtype(b.dtype, jnp.floating):
        b = b.astype(np.promote_types(b.dtype, X.dtype))
    return b.reshape(b.shape + (1,) * (X.ndim - b.ndim))


def of_all_heads(Y: Shaped[Array, "H d *columns"]) -> Shaped[Array, "rows *columns"]:
    """The rows of all heads, one after another."""
    return Y.reshape(Y.shape[0] * Y.shape[1], *Y.shape[2:])


def accumulation_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype in which sums over ``dtype`` are accumulated: at least float32, and float64 for float64."""
    return np.promote_types(dtype, np.float32)  # jnp.promote_types raises under jax_numpy_dtype_promotion="strict"


def scaled(A: Shaped[Array, "*axes"], factor: float) -> Shaped[Array, "*axes"]:
    """``factor A``. A narrow dtype rounds the product alone, not the factor, whose error all entries would share."""
    return (A.astype(accumulation_dtype(A.dtype)) * factor).astype(A.dtype)


def in_rows(A: Shaped[Array, "m n"]) -> Shaped[Array, "m n"]:
    """A in row-major layout, which the first factor of a product of narrow floats needs on a CPU.

    Otherwise XLA fuses a transposition into the product, and either widens both factors or finds only at run time that
    it has no such product.
    """
    return with_layout_constraint(A, Layout((0, 1)))


def are_numbers(*sizes: Any) -> bool:
    """Whether all sizes are known; under ``jax.export`` some may be symbolic."""
    return {*map(type, sizes)} <= {int}


def indices(n: Any) -> Any:
    """0 … n − 1, as a NumPy array unless n is symbolic (under ``jax.export``)."""
    return np.arange(n) if are_numbers(n) else jnp.arange(n)
