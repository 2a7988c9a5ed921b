"""Algorithms 14 and 15: sampling, with a full forward pass for every token, exactly as printed.

``training.generation`` computes the same tokens fast.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms.checks import check_count, check_key, check_length, check_lengths_value, check_tokens, is_known
from algorithms.d_transformer import d_transformer
from algorithms.ed_transformer import ed_transformer
from algorithms.notation import bos_token, eos_token
from algorithms.parameters import DTransformerParams, EDTransformerParams
from algorithms.registry import algorithm

__all__ = ["d_inference", "ed_inference", "sample"]


def _check_d_inference(x, theta, *, l_gen, tau, key) -> None:
    check_tokens("x", x)
    check_count("l_gen", l_gen, at_least=1)
    check_key(key)
    l_max = getattr(getattr(theta, "W_p", None), "shape", (0, None))[1]
    if l_max is not None and x.shape[0] + l_gen - 1 > l_max:
        raise ValueError(
            f"l_gen: a prompt of {x.shape[0]} tokens and {l_gen} more need l_max >= {x.shape[0] + l_gen - 1}, got "
            f"l_max = {l_max}; shorten the prompt, or generate at most {l_max - x.shape[0] + 1} tokens"
        )


def _check_d_values(x, theta, *, l_gen, tau, key) -> None:
    check_temperature(tau)


def check_temperature(tau: Any) -> None:
    """Check a temperature whose value is known.

    Raises:
        ValueError: if it is negative or NaN.
    """
    if is_known(tau) and not tau >= 0:
        raise ValueError(f"tau: expected a temperature >= 0 (0 is greedy, inf is uniform), got {tau}")


@algorithm(14, "DInference", check=_check_d_inference, check_values=_check_d_values, static=("l_gen",))
def d_inference(
    x: Int[Array, "l"],
    theta: DTransformerParams,
    *,
    l_gen: int,
    tau: float | Float[Array, ""],
    key: Key[Array, ""],
) -> Int[Array, "{l_gen}"]:
    """Algorithm 14: y ← DInference(x, θ̂). Continues a prompt, token by token, with Algorithm 10.

    Each token is drawn from ``q ∝ p^{1/τ}``, where p is the last column of ``DTransformer(x | θ̂)``.

    Args:
        x: token IDs of the prompt, beginning with bos_token.
        theta: trained parameters.
        l_gen: how many tokens to generate.
        tau: temperature τ: 0 takes the likeliest token, 1 samples faithfully, inf uniformly.
        key: randomness, consumed: token i = 0 … l_gen − 1 is drawn with ``fold_in(key, i)``.

    Returns:
        y, the continuation.

    Raises:
        TypeError: for tokens that are no integers, parameters of another kind, or an untyped key.
        ValueError: if τ < 0, l_gen < 1, or the text would outgrow l_max.

    Departures: none (columns behind the last one are computed too, and not read).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import DTransformerConfig, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=8, L=1, H=2, d_e=6, d_mlp=8))
        >>> d_inference(jnp.array([3, 0]), theta, l_gen=4, tau=0.0, key=jax.random.key(1)).shape
        (4,)

    Source: Phuong and Hutter 2022, Algorithm 14.
    """
    l = x.shape[0]  # line 1
    x = jnp.concatenate([x, jnp.zeros(l_gen, x.dtype)])  # room for y

    def generate(x, i):
        P = d_transformer(x[:-1], theta)  # line 3
        p = P[:, l + i - 1]  # line 4
        y = sample(p, tau, jax.random.fold_in(key, i)).astype(x.dtype)  # line 5
        x = x.at[l + i].set(y)  # line 6
        return x, None

    x, _ = jax.lax.scan(generate, x, jnp.arange(l_gen))  # line 2
    y = x[l:]  # return
    return y


def _check_ed_inference(z, theta, *, tau, key, l_max=None, z_length=None) -> None:
    check_tokens("z", z)
    check_key(key)
    check_length("z_length", z_length)
    longest = getattr(getattr(theta, "W_p", None), "shape", (0, None))[1]
    if l_max is None and longest is None:
        raise ValueError("l_max: expected the longest output in tokens, since these parameters set no limit, got None")
    if l_max is not None:
        check_count("l_max", l_max, at_least=1)
        if longest is not None and l_max > longest:
            raise ValueError(f"l_max: expected at most {longest}, the l_max of the parameters, got {l_max}")


def _check_ed_values(z, theta, *, tau, key, l_max=None, z_length=None) -> None:
    check_temperature(tau)
    check_lengths_value("z_length", z_length, z)


@algorithm(15, "EDInference", check=_check_ed_inference, check_values=_check_ed_values, static=("l_max",))
def ed_inference(
    z: Int[Array, "l_z"],
    theta: EDTransformerParams,
    *,
    tau: float | Float[Array, ""],
    key: Key[Array, ""],
    l_max: int | None = None,
    z_length: Int[Array, ""] | int | None = None,
) -> tuple[Int[Array, "l"], Int[Array, ""]]:
    """Algorithm 15: x̂ ← EDInference(z, θ̂). Translates a context, token by token, with Algorithm 8.

    Each token is drawn from ``q ∝ p^{1/τ}``, where p is the last column of ``EDTransformer(z, x̂ | θ̂)``.

    Args:
        z: token IDs of the context.
        theta: trained parameters.
        tau: temperature τ: 0 takes the likeliest token, 1 samples faithfully, inf uniformly.
        key: randomness, consumed: the draw i = 0, 1, … is made with ``fold_in(key, i)``.
        l_max: length at which to stop without eos_token, bos_token counted; None is the l_max of the parameters.
        z_length: tokens of z that are not padding; None for all.

    Returns:
        x̂ from bos_token to eos_token, padded with eos_token to l_max; and how many of its tokens are no padding.

    Raises:
        TypeError: for tokens that are no integers, parameters of another kind, or an untyped key.
        ValueError: if τ < 0, or l_max is not within that of the parameters.

    Departures: stops at l_max tokens, where the paper goes on until eos_token comes.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from algorithms import EDTransformerConfig, init_ed_transformer
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> x_hat, length = ed_inference(jnp.array([0, 1]), theta, tau=1.0, key=jax.random.key(1))
        >>> x_hat.shape, int(x_hat[0])
        ((4,), 3)

    Source: Phuong and Hutter 2022, Algorithm 15.
    """
    N_V = theta.W_e.shape[1]
    l_max = _longest(theta, l_max)
    x_hat = jnp.full(l_max, eos_token(N_V), jnp.int32).at[0].set(bos_token(N_V))  # line 1
    y = jnp.asarray(0, x_hat.dtype)  # line 2, where 0 means: not eos_token

    def unfinished(state):
        _, length, y = state
        return (y != eos_token(N_V)) & (length < l_max)  # line 3

    def generate(state):
        x_hat, length, y = state
        P = ed_transformer(z, x_hat, theta, z_length=z_length)  # line 4
        p = P[:, length - 1]  # line 5
        y = sample(p, tau, jax.random.fold_in(key, length - 1)).astype(x_hat.dtype)  # line 6
        x_hat = x_hat.at[length].set(y)  # line 7
        return x_hat, length + 1, y

    x_hat, length, _ = jax.lax.while_loop(unfinished, generate, (x_hat, jnp.asarray(1, jnp.int32), y))
    return x_hat, length


def _longest(theta, l_max) -> int:
    return theta.W_p.shape[1] if l_max is None else l_max


def sample(p: Float[Array, "N_V"], tau: float | Float[Array, ""], key: Key[Array, ""]) -> Int[Array, ""]:
    """Draw a token from ``q ∝ p^{1/τ}``: the likeliest (the first of several) at τ = 0, any at τ = ∞.

    Args:
        p: probabilities.
        tau: temperature τ.
        key: randomness, consumed.
    """
    exponent = 1 / jnp.where(tau == 0, 1, tau)
    log_q = jnp.where(exponent == 0, 0, jnp.log(p) * exponent)
    return jnp.where(tau == 0, jnp.argmax(p), jax.random.categorical(key, log_q))
