"""Algorithm 6, layer normalization, and RMSnorm, which is the same with m = β = 0."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.checks import Axes
from algorithms.notation import accumulation_dtype, as_columns
from algorithms.registry import algorithm, compiled
from algorithms.reverse_mode import is_hand_derived, reverse_only

__all__ = ["layer_norm", "layer_norm_columns", "rms_norm", "rms_norm_columns"]


def _check_layer_norm(e, gamma, beta, *, epsilon=0.0) -> None:
    axes = Axes()
    axes.check("e", e, "d_e")
    axes.check("gamma", gamma, "d_e")
    axes.check("beta", beta, "d_e")


def _check_rms_norm(e, gamma, *, epsilon=0.0) -> None:
    _check_layer_norm(e, gamma, gamma)


def _check_epsilon(*_, epsilon=0.0) -> None:
    if not epsilon >= 0:
        raise ValueError(f"epsilon: expected a number >= 0, got {epsilon}")


@algorithm(6, "layer_norm", check=_check_layer_norm, check_values=_check_epsilon, static=("epsilon",))
def layer_norm(
    e: Float[Array, "d_e"], gamma: Float[Array, "d_e"], beta: Float[Array, "d_e"], *, epsilon: float = 0.0
) -> Float[Array, "d_e"]:
    """Algorithm 6: ê ← layer_norm(e | γ, β). Normalizes one token's activations to mean 0 and variance 1.

    ``ê = (e − m)/√(v + ε) ⊙ γ + β`` with ``m = Σ e[i]/d_e`` and ``v = Σ (e[i] − m)²/d_e``.

    Args:
        e: activations of one token.
        gamma: element-wise scale γ.
        beta: element-wise offset β.
        epsilon: ε, added to the variance; 0 in the paper.

    Returns:
        ê, of the dtype of ``e``; the sums are formed in float32 at least.

    Raises:
        TypeError: for arrays that are not floating-point.
        ValueError: for shapes that disagree, or ε < 0.

    Departures: none with ε = 0, where a token of equal activations gives 0/0 = NaN, as the formula does.

    Example:
        >>> import jax.numpy as jnp
        >>> layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), jnp.zeros(2)).tolist()
        [-1.0, 1.0]

    Source: Phuong and Hutter 2022, Algorithm 6.
    """
    return layer_norm_columns(e, gamma, beta, epsilon, "paper")


@compiled(check=_check_rms_norm, check_values=_check_epsilon, static=("epsilon",))
def rms_norm(e: Float[Array, "d_e"], gamma: Float[Array, "d_e"], *, epsilon: float = 0.0) -> Float[Array, "d_e"]:
    """RMSnorm: Algorithm 6 with m = β = 0, ``ê = e/√(Σ e[i]²/d_e + ε) ⊙ γ``.

    Args:
        e: activations of one token.
        gamma: element-wise scale γ.
        epsilon: ε, added to the mean square; 0 in the paper.

    Raises:
        TypeError: for arrays that are not floating-point.
        ValueError: for shapes that disagree, or ε < 0.

    Example:
        >>> import jax.numpy as jnp
        >>> rms_norm(jnp.array([2.0, -2.0]), jnp.ones(2)).tolist()
        [1.0, -1.0]

    Source: Phuong and Hutter 2022, the prose above Algorithm 6.
    """
    return rms_norm_columns(e, gamma, epsilon, "paper")


def layer_norm_columns(
    X: Float[Array, "d_e *columns"],
    gamma: Float[Array, "d_e"],
    beta: Float[Array, "d_e"],
    epsilon: float,
    implementation: str,
) -> Float[Array, "d_e *columns"]:
    """Algorithm 6 of every column: ``for t: X[:, t] ← layer_norm(X[:, t] | γ, β)``."""
    if is_hand_derived(implementation):
        return _layer_norm(epsilon, *reverse_only((X, gamma, beta)))
    return _layer_norm_as_printed(epsilon, X, gamma, beta)


def rms_norm_columns(
    X: Float[Array, "d_e *columns"], gamma: Float[Array, "d_e"], epsilon: float, implementation: str
) -> Float[Array, "d_e *columns"]:
    """RMSnorm of every column."""
    if is_hand_derived(implementation):
        return _rms_norm(epsilon, *reverse_only((X, gamma)))
    return _rms_norm_as_printed(epsilon, X, gamma)


def _layer_norm_as_printed(epsilon, X, gamma, beta):
    e = X.astype(accumulation_dtype(X.dtype))
    m = e.mean(axis=0, keepdims=True)  # line 1
    v = jnp.square(e - m).mean(axis=0, keepdims=True)  # line 2
    e_hat = (e - m) / jnp.sqrt(v + epsilon) * as_columns(gamma, X) + as_columns(beta, X)  # return
    return e_hat.astype(X.dtype)


def _rms_norm_as_printed(epsilon, X, gamma):
    e = X.astype(accumulation_dtype(X.dtype))
    v = jnp.square(e).mean(axis=0, keepdims=True)  # line 2, with m = 0
    e_hat = e / jnp.sqrt(v + epsilon) * as_columns(gamma, X)  # return, with β = 0
    return e_hat.astype(X.dtype)


class _Residuals(NamedTuple):
    X: Array
    m: Array | None  # mean of each column; None in RMSnorm
    r: Array  # 1/√(v + ε) of each column
    gamma: Array
    beta: Array | None


_layer_norm = jax.custom_vjp(_layer_norm_as_printed, nondiff_argnums=(0,))
_rms_norm = jax.custom_vjp(_rms_norm_as_printed, nondiff_argnums=(0,))


def _layer_norm_forward(epsilon, X, gamma, beta):
    e = X.astype(accumulation_dtype(X.dtype))
    m = e.mean(axis=0, keepdims=True)
    r = 1 / jnp.sqrt(jnp.square(e - m).mean(axis=0, keepdims=True) + epsilon)
    e_hat = (e - m) * r * as_columns(gamma, X) + as_columns(beta, X)
    return e_hat.astype(X.dtype), _Residuals(X, m, r, gamma, beta)


def _rms_norm_forward(epsilon, X, gamma):
    e = X.astype(accumulation_dtype(X.dtype))
    r = 1 / jnp.sqrt(jnp.square(e).mean(axis=0, keepdims=True) + epsilon)
    return (e * r * as_columns(gamma, X)).astype(X.dtype), _Residuals(X, None, r, gamma, None)


def _backward(epsilon, residuals: _Residuals, dY):
    """With x̂ = (X − m) r the normalized columns, r = 1/√(v + ε), and g = γ ⊙ dY, column by column::

        ∂F/∂γ = Σ_t dY ⊙ x̂
        ∂F/∂β = Σ_t dY
        ∂F/∂X = r (g                          directly
                   − 1 Σ_i g[i]/d_e           through the mean (not in RMSnorm)
                   − x̂ Σ_i g[i] x̂[i]/d_e)     through the variance

    Source: sources/003, §12.4.4.
    """
    X, m, r, gamma, beta = residuals
    dY = dY.astype(r.dtype)
    x_hat = (X.astype(r.dtype) - (0 if m is None else m)) * r
    g = as_columns(gamma, X) * dY
    tokens = tuple(range(1, X.ndim))
    through_mean = 0 if m is None else g.mean(axis=0, keepdims=True)
    dX = r * (g - through_mean - x_hat * (g * x_hat).mean(axis=0, keepdims=True))
    dgamma = (dY * x_hat).sum(tokens)
    gradients = dX.astype(X.dtype), dgamma.astype(gamma.dtype)
    return gradients if beta is None else (*gradients, dY.sum(tokens).astype(beta.dtype))


_layer_norm.defvjp(_layer_norm_forward, _backward)
_rms_norm.defvjp(_rms_norm_forward, _backward)
