"""Algorithm 6, layer normalization, and RMSnorm, its special case m = β = 0."""

from typing import Unpack

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import AnyArray, accumulation_dtype, as_columns
from algorithms.machinery.contract import algorithm, compiled
from algorithms.notation import Epsilon, PrintedChoice
from algorithms.ops.normalization import with_rule


@algorithm(6, "layer_norm")
@with_rule
def layer_norm(
    e: Float[AnyArray, "d_e *batch"],
    gamma: Float[AnyArray, "d_e"],
    beta: Float[AnyArray, "d_e"],
    *,
    epsilon: Epsilon = 0.0,
    **options: Unpack[PrintedChoice],
) -> Float[Array, "d_e *batch"]:
    """Algorithm 6: ê ← layer_norm(e | γ, β). Normalizes each token's activations to mean 0 and variance 1.

    ``ê = (e − m)/√(v + ε) ⊙ γ + β`` with ``m = Σ e[i]/d_e`` and ``v = Σ (e[i] − m)²/d_e``, in float32 at least.
    Departures: none with ε = 0; a token whose activations are all equal then gives 0/0 = NaN, as in the paper.

    Example:
        >>> layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), jnp.zeros(2)).tolist()
        [-1.0, 1.0]
    """
    dtype, e = e.dtype, e.astype(accumulation_dtype(e.dtype))
    m = e.mean(axis=0, keepdims=True)  # line 1
    v = jnp.square(e - m).mean(axis=0, keepdims=True)  # line 2
    e_hat = (e - m) / jnp.sqrt(v + epsilon) * as_columns(gamma, e) + as_columns(beta, e)  # return
    return e_hat.astype(dtype)


@compiled
@with_rule
def rms_norm(
    e: Float[AnyArray, "d_e *batch"],
    gamma: Float[AnyArray, "d_e"],
    *,
    epsilon: Epsilon = 0.0,
    **options: Unpack[PrintedChoice],
) -> Float[Array, "d_e *batch"]:
    """RMSnorm: Algorithm 6 with m = β = 0, ``ê = e/√(Σ e[i]²/d_e + ε) ⊙ γ``.

    Example:
        >>> rms_norm(jnp.array([2.0, -2.0]), jnp.ones(2)).tolist()
        [1.0, -1.0]

    Source: Phuong and Hutter 2022, the prose above Algorithm 6.
    """
    dtype, e = e.dtype, e.astype(accumulation_dtype(e.dtype))
    v = jnp.square(e).mean(axis=0, keepdims=True)  # line 2, with m = 0
    e_hat = e / jnp.sqrt(v + epsilon) * as_columns(gamma, e)  # return, with β = 0
    return e_hat.astype(dtype)
