"""Predictions of each layer: the logit lens, and the tuned lens, which fits an affine map to each layer first."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from algorithms import DTransformerParams, EDTransformerParams
from algorithms.layers import lines_of
from algorithms.model.theta import every_layer


def logit_lens(
    X: Float[Array, "L d_e *columns"], theta: DTransformerParams | EDTransformerParams
) -> Float[Array, "L N_V *columns"]:
    """The logits of each layer's residual stream, ``X@8`` of Algorithm 10 or ``X@19`` of 8 (nostalgebraist 2020)."""
    if not isinstance(theta, (DTransformerParams, EDTransformerParams)):
        raise ValueError(
            f"theta: expected parameters of Algorithm 8 or 10, which unembed the last layer, got {type(theta).__name__}"
        )
    return jax.lax.map(lambda X: unembedded(X, theta), after_layers(X, theta))


def after_layers(
    X: Float[Array, "L d_e *columns"], theta: DTransformerParams | EDTransformerParams
) -> Float[Array, "L d_e *columns"]:
    """The input of the next layer or the last line: X, normalized first in a norm-last decoder."""
    if isinstance(theta, EDTransformerParams) or "norm_last" not in theta.variant.orders:
        return X
    norms = every_layer(theta.layers, theta.variant, lambda W: W.norm2)
    return jax.vmap(theta.variant.norm)(X, norms)


def unembedded(
    X: Float[Array, "d_e *columns"], theta: DTransformerParams | EDTransformerParams
) -> Float[Array, "N_V *columns"]:
    """The logits of a residual stream, by the last lines."""
    is_decoder = isinstance(theta, DTransformerParams)
    f = lines_of("Algorithm 10" if is_decoder else "decoder of Algorithm 8", X, theta)
    X = f.layer_norm(X, theta.norm if is_decoder else theta.decoder_norm)
    X = f.projected(X, theta) if is_decoder else X
    return theta.variant.unembedding.logits(X, theta)


class TunedLens(NamedTuple):
    """An affine map for each layer, added to its residual stream: ``X + W X + b 1ᵀ``."""

    W: Float[Array, "L d_e d_e"]
    b: Float[Array, "L d_e"]

    def __call__(self, X: Float[Array, "L d_e *columns"]) -> Float[Array, "L d_e *columns"]:
        """The estimates of the last layer's residual stream."""
        flat = X.reshape(*X.shape[:2], -1)
        return (flat + self.W @ flat + self.b[:, :, None]).reshape(X.shape)


def tuned_lens(
    X: Float[Array, "L d_e *columns"],
    theta: DTransformerParams | EDTransformerParams,
    *,
    steps: int = 300,
    eta: float = 1e-3,
) -> TunedLens:
    """Fit the maps with Adam, at the learning rate eta, to the residual stream X after each layer of some tokens, so
    that their predictions have the least mean KL divergence from the last layer's (Belrose et al. 2023).
    """
    L, d_e = X.shape[:2]
    log_p = jax.nn.log_softmax(unembedded(after_layers(X, theta)[-1], theta), axis=0)[None]
    optimizer = optax.adam(eta)

    def loss(lens):
        log_q = jax.nn.log_softmax(logit_lens(lens(X), theta), axis=1)
        return (jnp.exp(log_p) * (log_p - log_q)).sum(1).mean() * L  # the sum over layers, each with its own map

    def step(state: Any, _: None):
        lens, of_optimizer = state
        updates, of_optimizer = optimizer.update(jax.grad(loss)(lens), of_optimizer)
        return (optax.apply_updates(lens, updates), of_optimizer), None

    lens = TunedLens(jnp.zeros((L, d_e, d_e), X.dtype), jnp.zeros((L, d_e), X.dtype))
    (lens, _), _ = jax.lax.scan(step, (lens, optimizer.init(lens)), length=steps)
    return lens  # pyright: ignore[reportReturnType]
