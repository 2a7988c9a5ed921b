"""The training loss of Algorithms 11-13, from the hidden state and W_u."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from algorithms.batching import columns, side_by_side, tokens
from algorithms.checks import Axes, check_implementation, check_tokens
from algorithms.registry import compiled
from algorithms.scores import IMPLEMENTATIONS
from algorithms.unembedding import logits

__all__ = ["log_loss", "token_losses"]


def _check(X, W_u, targets, *, weights=None, b_u=None, label_smoothing=0.0, implementation="auto") -> None:
    axes = Axes()
    axes.check("X", X, "d_e l")
    axes.check("W_u", W_u, "N_V d_e")
    check_tokens("targets", targets)
    axes.check("targets", jnp.zeros(targets.shape), "l")
    if weights is not None:
        axes.check("weights", weights, "l")
    if b_u is not None:
        axes.check("b_u", b_u, "N_V")
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing: expected a share in [0, 1), got {label_smoothing!r}")
    check_implementation(implementation, IMPLEMENTATIONS)


@compiled(check=_check, static=("label_smoothing", "implementation"))
def log_loss(
    X: Float[Array, "d_e l"],
    W_u: Float[Array, "N_V d_e"],
    targets: Int[Array, "l"],
    *,
    weights: Float[Array, "l"] | None = None,
    b_u: Float[Array, "N_V"] | None = None,
    label_smoothing: float = 0.0,
    implementation: str = "auto",
) -> Float[Array, ""]:
    """``−Σ_t w_t log P[targets[t], t]`` with ``P = softmax(W_u X)``, without all of P at once.

    With label smoothing s the target is 1 − s of the token and s/N_V of every token:
    ``−Σ_t w_t ((1 − s) log P[targets[t], t] + s/N_V Σ_v log P[v, t])``.

    Args:
        X: hidden state, tokens as columns: ``X[:, :-1]`` and ``targets = x[1:]`` for next-token prediction.
        W_u: the unembedding matrix.
        targets: for each column, the ID of the token to predict.
        weights: of each column; None is 1 throughout. A column of weight 0 takes no part, whatever stands there.
        b_u: an output bias, as in BERT.
        label_smoothing: s.
        implementation: how it is computed; see ``IMPLEMENTATIONS``.

    Returns:
        the loss in nats, summed over the columns; NaN if a target of weight other than 0 is outside [0, N_V).

    Raises:
        TypeError: for arrays of another dtype.
        ValueError: for shapes that disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> log_loss(jnp.ones((1, 2)), jnp.zeros((4, 1)), jnp.array([0, 3])).round(4).item()
        2.7726

    Source: Phuong and Hutter 2022, line 5 of Algorithm 11; sources/003, §12.3.4 and §12.9.
    """
    losses = token_losses(X, W_u, targets, b_u, label_smoothing, implementation)
    return losses.sum() if weights is None else jnp.where(weights == 0, 0, weights * losses).sum()


def token_losses(
    X: Float[Array, "d_e *columns"],
    W_u: Float[Array, "N_V d_e"],
    targets: Int[Array, "*columns"],
    b_u: Float[Array, "N_V"] | None,
    label_smoothing: float,
    implementation: str,
) -> Float[Array, "*columns"]:
    """``−log P[targets[t], t]`` of every column, smoothed, in float32 at least."""

    def body(X, targets, shared):
        W_u, b_u = shared
        return _as_printed(X, W_u, b_u, targets, label_smoothing)[None]

    return side_by_side(body, [columns(X), tokens(targets)], (W_u, b_u))[0]


def _as_printed(X, W_u, b_u, targets, label_smoothing: float) -> Float[Array, "*columns"]:
    log_P = jax.nn.log_softmax(logits(X, W_u, b_u), axis=0)
    N_V = log_P.shape[0]
    inside = (targets >= 0) & (targets < N_V)
    of_target = jnp.take_along_axis(log_P, jnp.where(inside, targets, 0)[None], axis=0)[0]
    losses = -(1 - label_smoothing) * of_target - label_smoothing * log_P.mean(axis=0)
    return jnp.where(inside, losses, jnp.nan)
