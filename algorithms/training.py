"""Algorithms 11, 12 and 13: stochastic gradient descent, one sequence at a time, exactly as printed.

Minibatches, Adam, schedules and everything else of the paper's section 8 are in the package ``training``.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms.checks import check_count, check_key, check_length, check_lengths_value, check_tokens, is_known
from algorithms.d_transformer import d_hidden_state
from algorithms.e_transformer import e_hidden_state
from algorithms.ed_transformer import ed_hidden_state
from algorithms.loss import log_loss
from algorithms.notation import mask_token
from algorithms.parameters import DTransformerParams, EDTransformerParams, ETransformerParams
from algorithms.registry import algorithm

__all__ = ["d_loss", "d_training", "e_loss", "e_training", "ed_loss", "ed_training", "mask_tokens"]


def _check_training(x, N_epochs, key, **lengths) -> None:
    check_tokens("x", x, axes="N_data l")
    check_count("N_epochs", N_epochs)
    check_key(key)
    for name, value in lengths.items():
        check_length(name, value, x.shape[:1])


def _check_eta(eta) -> None:
    if is_known(eta) and not eta >= 0:
        raise ValueError(f"eta: expected a learning rate >= 0, got {eta}")


def _check_ed_training(z, x, theta, *, N_epochs, eta, z_lengths=None, x_lengths=None) -> None:
    check_tokens("z", z, axes="N_data l_z")
    _check_training(x, N_epochs, None, z_lengths=z_lengths, x_lengths=x_lengths)
    if z.shape[0] != x.shape[0]:
        raise ValueError(f"z, x: expected as many contexts as sequences, got {z.shape[0]} and {x.shape[0]}")


def _check_ed_values(z, x, theta, *, N_epochs, eta, z_lengths=None, x_lengths=None) -> None:
    _check_eta(eta)
    check_lengths_value("z_lengths", z_lengths, z)
    check_lengths_value("x_lengths", x_lengths, x)


@algorithm(11, "EDTraining", check=_check_ed_training, check_values=_check_ed_values, static=("N_epochs",))
def ed_training(
    z: Int[Array, "N_data l_z"],
    x: Int[Array, "N_data l_x"],
    theta: EDTransformerParams,
    *,
    N_epochs: int,
    eta: float | Float[Array, ""],
    z_lengths: Int[Array, "N_data"] | None = None,
    x_lengths: Int[Array, "N_data"] | None = None,
) -> EDTransformerParams:
    """Algorithm 11: θ̂ ← EDTraining(z, x, θ). Trains Algorithm 8 to predict each next token, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every pair, with ``loss(θ) = −Σ_{t<ℓ} log P(θ)[x[t+1], t]``.

    Args:
        z: token IDs of the contexts, padded at the end.
        x: token IDs of the sequences, padded at the end; each begins with bos_token and ends with eos_token.
        theta: initial parameters.
        N_epochs: passes over the data.
        eta: learning rate η.
        z_lengths: tokens of each context that are not padding; None for all.
        x_lengths: tokens of each sequence that are not padding; None for all.

    Returns:
        θ̂, the trained parameters.

    Raises:
        TypeError: for tokens or lengths that are no integers, or parameters of another kind.
        ValueError: for shapes that disagree, a sequence longer than l_max, a length outside [0, l], or η < 0.

    Departures: none; the data are one padded array, and the loss is formed from log P.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import EDTransformerConfig, init_ed_transformer
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> theta_hat = ed_training(jnp.array([[0, 1]]), jnp.array([[3, 1, 4]]), theta, N_epochs=1, eta=0.01)

    Source: Phuong and Hutter 2022, Algorithm 11.
    """
    data = (z, x, _all_of(z, z_lengths), _all_of(x, x_lengths))
    theta_hat = _descend(lambda theta, data, key: ed_loss(theta, *data), theta, data, N_epochs, eta, None)  # lines 1-6
    return theta_hat


def ed_loss(
    theta: EDTransformerParams,
    z: Int[Array, "l_z"],
    x: Int[Array, "l_x"],
    l_z: Int[Array, ""],
    l: Int[Array, ""],
) -> Float[Array, ""]:
    """The loss of Algorithm 11, of a pair of sequences with l_z and l tokens that are not padding."""
    t = jnp.arange(x.shape[0])  # line 3: those with t < l
    X = ed_hidden_state(z, jnp.where(t < l, x, 0), theta, z_length=l_z)  # line 4, up to the softmax
    loss = log_loss(X, _unembedding(theta), jnp.roll(x, -1), weights=_weights(t < l - 1, X))  # line 5
    return loss


def _check_e_training(x, theta, *, N_epochs, eta, p_mask, key, lengths=None) -> None:
    _check_training(x, N_epochs, key, lengths=lengths)


def _check_e_values(x, theta, *, N_epochs, eta, p_mask, key, lengths=None) -> None:
    _check_eta(eta)
    check_lengths_value("lengths", lengths, x)
    if is_known(p_mask) and not 0 < p_mask < 1:
        raise ValueError(f"p_mask: expected a probability in (0, 1), got {p_mask}")


@algorithm(12, "ETraining", check=_check_e_training, check_values=_check_e_values, static=("N_epochs",))
def e_training(
    x: Int[Array, "N_data l"],
    theta: ETransformerParams,
    *,
    N_epochs: int,
    eta: float | Float[Array, ""],
    p_mask: float | Float[Array, ""],
    key: Key[Array, ""],
    lengths: Int[Array, "N_data"] | None = None,
) -> ETransformerParams:
    """Algorithm 12: θ̂ ← ETraining(x, θ). Trains Algorithm 9 to predict masked tokens, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every sequence, with ``loss(θ) = −Σ_{t∈T̃} log P(θ)[x[t], t]`` over the masked t.

    Args:
        x: token IDs of the sequences, padded at the end.
        theta: initial parameters.
        N_epochs: passes over the data.
        eta: learning rate η.
        p_mask: probability to mask a token, in (0, 1).
        key: randomness of the masks, consumed: epoch i masks sequence n with ``fold_in(fold_in(key, i), n)``.
        lengths: tokens of each sequence that are not padding; None for all.

    Returns:
        θ̂, the trained parameters.

    Raises:
        TypeError: for tokens or lengths that are no integers, parameters of another kind, or an untyped key.
        ValueError: for shapes that disagree, a sequence longer than l_max, a length outside [0, l], η < 0, or p_mask
            outside (0, 1).

    Departures: none; the data are one padded array, and the loss is formed from log P.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import ETransformerConfig, init_e_transformer
        >>> theta = init_e_transformer(jax.random.key(0), ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> x = jnp.array([[3, 0, 1, 4]])
        >>> theta_hat = e_training(x, theta, N_epochs=1, eta=0.01, p_mask=0.5, key=jax.random.key(1))

    Source: Phuong and Hutter 2022, Algorithm 12.
    """

    def masked_loss(theta, data, key):
        x, l = data
        x_tilde = mask_tokens(x, p_mask, key, mask_token(theta.W_e.shape[1]))  # lines 4-6
        return e_loss(theta, x, x_tilde, l)

    theta_hat = _descend(masked_loss, theta, (x, _all_of(x, lengths)), N_epochs, eta, key)  # lines 1-10
    return theta_hat


def mask_tokens(
    x: Int[Array, "l"], p_mask: float | Float[Array, ""], key: Key[Array, ""], mask_token: int
) -> Int[Array, "l"]:
    """Lines 4-6 of Algorithm 12: each token is replaced by mask_token with probability p_mask, independently."""
    return jnp.where(jax.random.bernoulli(key, p_mask, x.shape), mask_token, x)


def e_loss(
    theta: ETransformerParams, x: Int[Array, "l"], x_tilde: Int[Array, "l"], l: Int[Array, ""]
) -> Float[Array, ""]:
    """The loss of Algorithm 12, of a sequence with l tokens that are not padding, masked as x_tilde."""
    t = jnp.arange(x.shape[0])  # line 3: those with t < l
    T_tilde = (x_tilde == mask_token(theta.W_e.shape[1])) & (t < l)  # line 7
    X = e_hidden_state(x_tilde, theta, length=l)  # line 8, up to the softmax
    loss = log_loss(X, _unembedding(theta), x, weights=_weights(T_tilde, X), b_u=theta.b_u)  # line 9
    return loss


def _check_d_training(x, theta, *, N_epochs, eta, lengths=None) -> None:
    _check_training(x, N_epochs, None, lengths=lengths)


def _check_d_values(x, theta, *, N_epochs, eta, lengths=None) -> None:
    _check_eta(eta)
    check_lengths_value("lengths", lengths, x)


@algorithm(13, "DTraining", check=_check_d_training, check_values=_check_d_values, static=("N_epochs",))
def d_training(
    x: Int[Array, "N_data l"],
    theta: DTransformerParams,
    *,
    N_epochs: int,
    eta: float | Float[Array, ""],
    lengths: Int[Array, "N_data"] | None = None,
) -> DTransformerParams:
    """Algorithm 13: θ̂ ← DTraining(x, θ). Trains Algorithm 10 to predict each next token, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every sequence, with ``loss(θ) = −Σ_{t<ℓ} log P(θ)[x[t+1], t]``.

    Args:
        x: token IDs of the sequences, padded at the end.
        theta: initial parameters.
        N_epochs: passes over the data.
        eta: learning rate η.
        lengths: tokens of each sequence that are not padding; None for all.

    Returns:
        θ̂, the trained parameters.

    Raises:
        TypeError: for tokens or lengths that are no integers, or parameters of another kind.
        ValueError: for shapes that disagree, a sequence longer than l_max, a length outside [0, l], or η < 0.

    Departures: none; the data are one padded array, and the loss is formed from log P.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import DTransformerConfig, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> theta_hat = d_training(jnp.array([[3, 0, 1, 4]]), theta, N_epochs=1, eta=0.01)

    Source: Phuong and Hutter 2022, Algorithm 13.
    """
    data = (x, _all_of(x, lengths))
    theta_hat = _descend(lambda theta, data, key: d_loss(theta, *data), theta, data, N_epochs, eta, None)  # lines 1-6
    return theta_hat


def d_loss(theta: DTransformerParams, x: Int[Array, "l"], l: Int[Array, ""]) -> Float[Array, ""]:
    """The loss of Algorithm 13, of a sequence with l tokens that are not padding."""
    t = jnp.arange(x.shape[0])  # line 3: those with t < l
    X = d_hidden_state(jnp.where(t < l, x, 0), theta)  # line 4, up to the softmax
    loss = log_loss(X, _unembedding(theta), jnp.roll(x, -1), weights=_weights(t < l - 1, X))  # line 5
    return loss


def _descend(
    loss: Callable[..., Array], theta: Any, data: Any, N_epochs: int, eta: Any, key: Key[Array, ""] | None
) -> Any:
    """Lines 1, 2 and the last of Algorithms 11-13: ``θ ← θ − η ∇loss(θ)`` for every sequence of every epoch."""
    sgd = optax.sgd(eta)
    N_data = jax.tree.leaves(data)[0].shape[0]

    def of_sequence(theta, indices_and_data):
        i, n, data_n = indices_and_data
        key_n = None if key is None else jax.random.fold_in(jax.random.fold_in(key, i), n)
        gradient = jax.grad(loss)(theta, data_n, key_n)
        updates, _ = sgd.update(gradient, sgd.init(theta))
        return optax.apply_updates(theta, updates), None  # line 6; line 10 of Algorithm 12

    def of_epoch(theta, i):
        theta, _ = jax.lax.scan(of_sequence, theta, (jnp.full(N_data, i), jnp.arange(N_data), data))  # line 2
        return theta, None

    theta_hat, _ = jax.lax.scan(of_epoch, theta, jnp.arange(N_epochs))  # line 1
    return theta_hat


def _all_of(x: Array, lengths: Array | None) -> Int[Array, "N_data"]:
    return jnp.full(x.shape[0], x.shape[1]) if lengths is None else lengths


def _unembedding(theta: Any) -> Float[Array, "N_V d"]:
    return theta.W_e.T if theta.W_u is None else theta.W_u


def _weights(chosen: Array, X: Array) -> Float[Array, "l"]:
    return chosen.astype(X.dtype)
