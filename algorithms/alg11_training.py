"""Algorithms 11, 12 and 13: stochastic gradient descent, one sequence at a time, exactly as printed.

Minibatches, Adam, schedules and the rest of the paper's section 8 are in the package ``training``.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Key

from algorithms.alg08_ed_transformer import ed_hidden_state
from algorithms.alg09_e_transformer import e_hidden_state
from algorithms.alg10_d_transformer import d_hidden_state
from algorithms.layers import for_updates
from algorithms.loops import for_each
from algorithms.losses import losses_of, mtp_token_losses
from algorithms.machinery.arrays import AnyArray, as_ids
from algorithms.machinery.contract import algorithm
from algorithms.model.theta import DTransformerParams, EDTransformerParams, ETransformerParams
from algorithms.notation import Choice, ContextLengths, Epochs, Lengths, PrimaryLengths, Probability, Rate, mask_token
from algorithms.ops.dropout import by_own_key

T = TypeVar("T", bound=Any)


@algorithm(11, "EDTraining")
def ed_training(
    z: Integer[AnyArray, "N_data l_z"],
    x: Integer[AnyArray, "N_data l_x"],
    theta: EDTransformerParams,
    *,
    N_epochs: Epochs,
    eta: Rate,
    z_length: ContextLengths = None,
    length: PrimaryLengths = None,
    **options: Unpack[Choice],
) -> EDTransformerParams:
    """Algorithm 11: θ̂ ← EDTraining(z, x, θ). Trains Algorithm 8 to predict each next token, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every pair, with ``loss(θ) = −Σ_{t<ℓ} log P(θ)[x[t+1], t]`` and η = ``eta``. Sequences
    are padded at the end to the same length; each x begins with bos_token and ends with eos_token.
    Departures: none; the data are one padded array, and the loss is computed from log P.

    Example:
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> theta_hat = ed_training(jnp.array([[0, 1]]), jnp.array([[3, 1, 4]]), theta, N_epochs=50, eta=0.1)
        >>> ed_transformer(jnp.array([0, 1]), jnp.array([3, 1]), theta_hat).argmax(axis=0).tolist()
        [1, 4]
    """
    N_data, t = x.shape[0], jnp.arange(x.shape[1])

    @for_each(N_epochs, theta)  # line 1
    def theta_hat(i, theta):
        @for_each(N_data, theta)  # line 2
        def theta_i(n, theta):
            l = _length(x, length, n)  # line 3
            z_n, l_z, x_n = z[n], _length(z, z_length, n), jnp.where(t < l, as_ids(x[n]), 0)

            def loss(theta):
                X = ed_hidden_state(z_n, x_n, theta, z_length=l_z)  # line 4, up to the softmax
                loss = losses_of(X, theta, jnp.roll(x_n, -1), t + 1 < l).sum()  # line 5
                return loss

            theta = descend(loss, theta, eta, N_epochs * N_data)  # line 6
            return theta

        return theta_i

    return theta_hat  # return


@algorithm(12, "ETraining")
def e_training(
    x: Integer[AnyArray, "N_data l"],
    theta: ETransformerParams,
    *,
    N_epochs: Epochs,
    eta: Rate,
    p_mask: Probability | None,
    key: Key[Array, ""],
    length: Lengths = None,
    **options: Unpack[Choice],
) -> ETransformerParams:
    """Algorithm 12: θ̂ ← ETraining(x, θ). Trains Algorithm 9 to predict masked tokens, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every sequence, with ``loss(θ) = −Σ_{t∈T̃} log P(θ)[x[t], t]``, a sum over the masked
    tokens. Each token is masked with probability ``p_mask``; epoch i draws those of sequence n with
    ``fold_in(fold_in(key, i), n)``. With None, masked diffusion (Nie et al. 2025, "Large Language Diffusion Models"),
    each sequence draws a probability, by `drawn_p_mask`, and its loss is divided by that.
    Departures: none; the data are one padded array, and the loss is computed from log P.

    Example:
        >>> theta = init_e_transformer(jax.random.key(0), ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> x = jnp.array([[3, 0, 1, 4]])
        >>> theta_hat = e_training(x, theta, N_epochs=100, eta=0.05, p_mask=0.5, key=jax.random.key(1))
        >>> int(e_transformer(jnp.array([3, 2, 1, 4]), theta_hat)[:, 1].argmax())  # 2 is mask_token, in place of 0
        0
    """
    N_data, t, mask = x.shape[0], jnp.arange(x.shape[1]), mask_token(theta.W_e.shape[1])
    draw = by_own_key(functools.partial(jax.random.bernoulli, shape=t.shape))

    @for_each(N_epochs, theta)  # line 1
    def theta_hat(i, theta):
        @for_each(N_data, theta)  # line 2
        def theta_i(n, theta):
            l = _length(x, length, n)  # line 3
            x_n, key_n = as_ids(x[n]), jax.random.fold_in(jax.random.fold_in(key, i), n)
            p, key_n = drawn_p_mask(key_n) if p_mask is None else (p_mask, key_n)
            x_tilde = jnp.where(draw(key_n, p), mask, x_n)  # lines 4-6
            T_tilde = (x_tilde == mask) & (t < l)  # line 7

            def loss(theta):
                X = e_hidden_state(x_tilde, theta, length=l)  # line 8, up to the softmax
                loss = losses_of(X, theta, x_n, T_tilde).sum()  # line 9
                return loss / p if p_mask is None else loss

            theta = descend(loss, theta, eta, N_epochs * N_data)  # line 10
            return theta

        return theta_i

    return theta_hat  # return


def drawn_p_mask(key: Key[Array, ""]) -> tuple[Float[Array, ""], Key[Array, ""]]:
    """A probability of masking, uniform in [1/1000, 1), and the key of what is masked."""
    of_p, of_tokens = jax.random.split(key)
    return by_own_key(functools.partial(jax.random.uniform, minval=1e-3))(of_p), of_tokens


@algorithm(13, "DTraining")
def d_training(
    x: Integer[AnyArray, "N_data l"],
    theta: DTransformerParams,
    *,
    N_epochs: Epochs,
    eta: Rate,
    length: Lengths = None,
    **options: Unpack[Choice],
) -> DTransformerParams:
    """Algorithm 13: θ̂ ← DTraining(x, θ). Trains Algorithm 10 to predict each next token, by plain SGD.

    ``θ ← θ − η ∇loss(θ)`` for every sequence, with ``loss(θ) = −Σ_{t<ℓ} log P(θ)[x[t+1], t]``.
    Departures: none; the data are one padded array, and the loss is computed from log P. If θ has a head for the token
    after the next, `mtp_token_losses` times their weight are added.

    Example:
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> theta_hat = d_training(jnp.array([[3, 0, 1, 4]]), theta, N_epochs=50, eta=0.1)
        >>> d_transformer(jnp.array([3, 0, 1]), theta_hat).argmax(axis=0).tolist()
        [0, 1, 4]
    """
    N_data, t = x.shape[0], jnp.arange(x.shape[1])

    @for_each(N_epochs, theta)  # line 1
    def theta_hat(i, theta):
        @for_each(N_data, theta)  # line 2
        def theta_i(n, theta):
            l = _length(x, length, n)  # line 3
            x_n = jnp.where(t < l, as_ids(x[n]), 0)  # padding may hold anything

            def loss(theta):
                X = d_hidden_state(x_n, theta)  # line 4, up to the softmax
                loss = losses_of(X, theta, jnp.roll(x_n, -1), t + 1 < l).sum()  # line 5
                if theta.variant.mtp:
                    weight = theta.variant.mtp.weight
                    loss = loss + weight * mtp_token_losses(X, x_n, theta, length=l).sum()
                return loss

            theta = descend(loss, theta, eta, N_epochs * N_data)  # line 6
            return theta

        return theta_i

    return theta_hat  # return


def descend(loss: Callable[[T], Array], theta: T, eta: Any, updates: int = 1) -> T:
    """``θ − η ∇loss(θ)``; ``updates``: how many of these a training makes."""
    with for_updates(updates, theta):
        g = jax.grad(loss)(theta)
    return jax.tree.map(lambda theta, g: theta - (eta * g).astype(theta.dtype), theta, g)


def _length(x: Integer[Array, "N_data l"], length: Array | None, n: Array) -> Integer[Array, ""]:
    """The length of sequence n, in the integer type of token IDs: in uint8, ℓ − 1 would wrap around at ℓ = 0."""
    return as_ids(x.shape[1] if length is None else jnp.asarray(length)[n])
