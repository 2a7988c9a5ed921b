"""Algorithms 11, 12 and 13: stochastic gradient descent, one sequence at a time, exactly as printed.

Minibatches, Adam, schedules and everything else of the paper's section 8 are in the package ``training``.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Key

from algorithms.alg08_ed_transformer import ed_hidden_state
from algorithms.alg09_e_transformer import e_hidden_state
from algorithms.alg10_d_transformer import d_hidden_state
from algorithms.machinery.arrays import as_ids
from algorithms.machinery.naming import numbered
from algorithms.model.variant import NO_DROPOUT, Variant
from algorithms.model.variants import PAPER
from algorithms.notation import (
    ContextLengths,
    Epochs,
    Implementation,
    Lengths,
    PrimaryLengths,
    Probability,
    Rate,
    mask_token,
)
from algorithms.ops.log_loss import log_loss
from algorithms.parameters import DTransformerParams, EDTransformerParams, ETransformerParams

FixedVariant = Annotated[Variant, NO_DROPOUT]


@numbered
def ed_training(
    z: Integer[Array, "N_data l_z"],
    x: Integer[Array, "N_data l_x"],
    theta: EDTransformerParams,
    *,
    N_epochs: Epochs,
    eta: Rate,
    z_lengths: ContextLengths = None,
    x_lengths: PrimaryLengths = None,
    variant: FixedVariant = PAPER,
    implementation: Implementation = "auto",
) -> EDTransformerParams:
    """Algorithm 11: θ̂ ← EDTraining(z, x, θ). Trains Algorithm 8 to predict each next token, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every pair, with ``loss(θ) = −Σ_{t<ℓ} log P(θ)[x[t+1], t]``. The sequences are padded at
    the end to one length; each x begins with bos_token and ends with eos_token. η is ``eta``.

    Departures: none; the data are one padded array, and the loss is formed from log P.

    Example:
        >>> from algorithms import EDTransformerConfig, init_ed_transformer
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> theta_hat = ed_training(jnp.array([[0, 1]]), jnp.array([[3, 1, 4]]), theta, N_epochs=1, eta=0.01)

    Source: Phuong and Hutter 2022, Algorithm 11.
    """

    def step(theta, data, _):
        g = jax.grad(ed_loss)(theta, *data, variant=variant, implementation=implementation)  # line 6: ∇loss
        theta = jax.tree.map(lambda theta, g: theta - (eta * g).astype(theta.dtype), theta, g)  # line 6
        return theta

    data = (z, x, _all_of(z, z_lengths), _all_of(x, x_lengths))
    theta_hat = _for_each_sequence_of_each_epoch(step, theta, data, N_epochs)  # lines 1-2
    return theta_hat


@numbered
def ed_loss(
    theta: EDTransformerParams,
    z: Integer[Array, "l_z"],
    x: Integer[Array, "l_x"],
    l_z: Integer[Array, ""],
    l: Integer[Array, ""],
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
) -> Float[Array, ""]:
    """The loss of Algorithm 11, of a pair of sequences with l_z and l tokens that are not padding."""
    t = jnp.arange(x.shape[0])  # line 3: those with t < l
    x = jnp.where(t < l, as_ids(x), 0)
    X = ed_hidden_state(  # line 4, up to the softmax
        z, x, theta, variant=variant, implementation=implementation, z_length=l_z
    )
    weights = (t < l - 1).astype(X.dtype)
    loss = log_loss(
        X,
        variant.unembedding.matrix(theta),
        jnp.roll(x, -1),
        weights=weights,
        b_u=theta.b_u,
        implementation=implementation,
    )  # line 5
    return loss


@numbered
def e_training(
    x: Integer[Array, "N_data l"],
    theta: ETransformerParams,
    *,
    N_epochs: Epochs,
    eta: Rate,
    p_mask: Probability,
    key: Key[Array, ""],
    lengths: Lengths = None,
    variant: FixedVariant = PAPER,
    implementation: Implementation = "auto",
) -> ETransformerParams:
    """Algorithm 12: θ̂ ← ETraining(x, θ). Trains Algorithm 9 to predict masked tokens, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every sequence, with ``loss(θ) = −Σ_{t∈T̃} log P(θ)[x[t], t]`` over the masked t, each of
    which is masked with probability ``p_mask``: sequence n in epoch i by ``fold_in(fold_in(key, i), n)``.

    Departures: none; the data are one padded array, and the loss is formed from log P.

    Example:
        >>> from algorithms import ETransformerConfig, init_e_transformer
        >>> theta = init_e_transformer(jax.random.key(0), ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> x = jnp.array([[3, 0, 1, 4]])
        >>> theta_hat = e_training(x, theta, N_epochs=1, eta=0.01, p_mask=0.5, key=jax.random.key(1))

    Source: Phuong and Hutter 2022, Algorithm 12.
    """

    def step(theta, data, indices):
        x, l = data
        i, n = indices
        key_n = jax.random.fold_in(jax.random.fold_in(key, i), n)
        x_tilde = mask_tokens(x, p_mask, key_n, mask_token(theta.W_e.shape[1]))  # lines 4-6
        g = jax.grad(e_loss)(theta, x, x_tilde, l, variant=variant, implementation=implementation)  # line 10: ∇loss
        theta = jax.tree.map(lambda theta, g: theta - (eta * g).astype(theta.dtype), theta, g)  # line 10
        return theta

    theta_hat = _for_each_sequence_of_each_epoch(step, theta, (x, _all_of(x, lengths)), N_epochs)  # lines 1-2
    return theta_hat


def mask_tokens(
    x: Integer[Array, "l"], p_mask: float | Float[Array, ""], key: Key[Array, ""], mask_token: int
) -> Integer[Array, "l"]:
    """Lines 4-6 of Algorithm 12: each token is replaced by mask_token with probability p_mask, independently."""
    return jnp.where(jax.random.bernoulli(key, p_mask, x.shape), mask_token, as_ids(x))


@numbered
def e_loss(
    theta: ETransformerParams,
    x: Integer[Array, "l"],
    x_tilde: Integer[Array, "l"],
    l: Integer[Array, ""],
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
) -> Float[Array, ""]:
    """The loss of Algorithm 12, of a sequence with l tokens that are not padding, masked as x_tilde."""
    t = jnp.arange(x.shape[0])  # line 3: those with t < l
    T_tilde = (x_tilde == mask_token(theta.W_e.shape[1])) & (t < l)  # line 7
    X = e_hidden_state(
        x_tilde, theta, variant=variant, implementation=implementation, length=l
    )  # line 8, but its softmax
    weights = T_tilde.astype(X.dtype)
    loss = log_loss(  # line 9
        X, variant.unembedding.matrix(theta), x, weights=weights, b_u=theta.b_u, implementation=implementation
    )
    return loss


@numbered
def d_training(
    x: Integer[Array, "N_data l"],
    theta: DTransformerParams,
    *,
    N_epochs: Epochs,
    eta: Rate,
    lengths: Lengths = None,
    variant: FixedVariant = PAPER,
    implementation: Implementation = "auto",
) -> DTransformerParams:
    """Algorithm 13: θ̂ ← DTraining(x, θ). Trains Algorithm 10 to predict each next token, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every sequence, with ``loss(θ) = −Σ_{t<ℓ} log P(θ)[x[t+1], t]``.

    Departures: none; the data are one padded array, and the loss is formed from log P.

    Example:
        >>> from algorithms import DTransformerConfig, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> theta_hat = d_training(jnp.array([[3, 0, 1, 4]]), theta, N_epochs=1, eta=0.01)

    Source: Phuong and Hutter 2022, Algorithm 13.
    """

    def step(theta, data, _):
        g = jax.grad(d_loss)(theta, *data, variant=variant, implementation=implementation)  # line 6: ∇loss
        theta = jax.tree.map(lambda theta, g: theta - (eta * g).astype(theta.dtype), theta, g)  # line 6
        return theta

    theta_hat = _for_each_sequence_of_each_epoch(step, theta, (x, _all_of(x, lengths)), N_epochs)  # lines 1-2
    return theta_hat


@numbered
def d_loss(
    theta: DTransformerParams,
    x: Integer[Array, "l"],
    l: Integer[Array, ""],
    *,
    variant: Variant = PAPER,
    implementation: Implementation = "auto",
) -> Float[Array, ""]:
    """The loss of Algorithm 13, of a sequence with l tokens that are not padding."""
    t = jnp.arange(x.shape[0])  # line 3: those with t < l
    x = jnp.where(t < l, as_ids(x), 0)
    X = d_hidden_state(x, theta, variant=variant, implementation=implementation)  # line 4, up to the softmax
    weights = (t < l - 1).astype(X.dtype)
    loss = log_loss(
        X,
        variant.unembedding.matrix(theta),
        jnp.roll(x, -1),
        weights=weights,
        b_u=theta.b_u,
        implementation=implementation,
    )  # line 5
    return loss


@numbered
def _for_each_sequence_of_each_epoch(step: Callable[..., Any], theta: Any, data: Any, N_epochs: int) -> Any:
    """``for i = 1, …, N_epochs: for n = 1, …, N_data: θ ← step(θ, data of n, (i, n))``."""
    N_data = jax.tree.leaves(data)[0].shape[0]

    def of_sequence(theta, i_n_and_data):
        i, n, data_n = i_n_and_data
        return step(theta, data_n, (i, n)), None

    def of_epoch(theta, i):
        theta, _ = jax.lax.scan(of_sequence, theta, (jnp.full(N_data, i), jnp.arange(N_data), data))  # line 2
        return theta, None

    theta_hat, _ = jax.lax.scan(of_epoch, theta, jnp.arange(N_epochs))  # line 1
    return theta_hat


def _all_of(x: Array, lengths: Array | None) -> Integer[Array, "N_data"]:
    return jnp.full(x.shape[0], x.shape[1]) if lengths is None else lengths
