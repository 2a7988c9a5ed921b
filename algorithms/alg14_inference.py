"""Algorithms 14 and 15: sampling, with a full forward pass for every token, exactly as printed.

``training.generation`` computes the same tokens fast.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Key

from algorithms.alg08_ed_transformer import ed_transformer
from algorithms.alg10_d_transformer import d_transformer
from algorithms.alg11_training import FixedVariant
from algorithms.machinery.arrays import accumulation_dtype, as_ids
from algorithms.machinery.contract import Relation
from algorithms.machinery.naming import numbered
from algorithms.machinery.varying import match_varying_axes
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER
from algorithms.notation import ContextLength, Count, Implementation, Temperature, bos_token, eos_token
from algorithms.ops.dropout import fold_in
from algorithms.parameters import DTransformerParams, EDTransformerParams


def _check_room(arguments) -> None:
    l, l_gen, l_max = arguments["x"].shape[-1], arguments["l_gen"], _limit(arguments["theta"], arguments["variant"])
    if l_max is not None and l + l_gen - 1 > l_max:
        raise ValueError(
            f"l_gen: a prompt of {l} tokens and {l_gen} more need l_max >= {l + l_gen - 1}, got l_max = {l_max}; "
            f"shorten the prompt, or generate at most {l_max - l + 1} tokens"
        )


def _check_longest(arguments) -> None:
    l_max, limit = arguments["l_max"], _limit(arguments["theta"], arguments["variant"])
    if l_max is None and limit is None:
        raise ValueError("l_max: expected the longest output in tokens, since these parameters set no limit, got None")
    if l_max is not None and limit is not None and l_max > limit:
        raise ValueError(f"l_max: expected at most {limit}, the l_max of the parameters, got {l_max}")


def _limit(theta: Any, variant: Variant) -> int | None:
    """The longest sequence that the parameters have positions for; None: sinusoids set no limit."""
    return variant.embedding.limit(theta)


@numbered
def d_inference(
    x: Integer[Array, "*batch l"],
    theta: DTransformerParams,
    *,
    l_gen: Annotated[Count, Relation(_check_room)],
    tau: Temperature,
    key: Key[Array, "*batch"],
    variant: FixedVariant = PAPER,
    implementation: Implementation = "auto",
) -> Integer[Array, "*batch {l_gen}"]:
    """Algorithm 14: y ← DInference(x, θ̂). Continues a prompt by ``l_gen`` tokens, one by one, with Algorithm 10.

    Each token is drawn from ``q ∝ p^{1/τ}``, where p is the last column of ``DTransformer(x | θ̂)``: τ = 0 takes the
    likeliest, 1 samples faithfully, inf uniformly. Token i = 0 … l_gen − 1 is drawn with ``fold_in(key, i)``.

    Departures: none (columns behind the last one are computed too, and not read).

    Example:
        >>> from algorithms import DTransformerConfig, init_d_transformer
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=8, L=1, H=2, d_e=6, d_mlp=8))
        >>> d_inference(jnp.array([3, 0]), theta, l_gen=4, tau=0.0, key=jax.random.key(1)).shape
        (4,)

    Source: Phuong and Hutter 2022, Algorithm 14.
    """
    l = x.shape[-1]  # line 1
    x = jnp.concatenate([as_ids(x), jnp.zeros((*x.shape[:-1], l_gen), int)], axis=-1)  # room for y
    x = match_varying_axes((x, theta, tau, key))[0]

    def generate(x, i):
        P = d_transformer(x[..., :-1], theta, variant=variant, implementation=implementation)  # line 3
        p = P[..., l + i - 1]  # line 4
        y = sample(p, tau, fold_in(key, i))  # line 5
        x = x.at[..., l + i].set(y)  # line 6
        return x, None

    x, _ = jax.lax.scan(generate, x, jnp.arange(l_gen))  # line 2
    y = x[..., l:].astype(jnp.int32)  # return
    return y


@numbered
def ed_inference(
    z: Integer[Array, "*batch l_z"],
    theta: EDTransformerParams,
    *,
    tau: Temperature,
    key: Key[Array, "*batch"],
    l_max: Annotated[Count | None, Relation(_check_longest)] = None,
    z_length: ContextLength = None,
    variant: FixedVariant = PAPER,
    implementation: Implementation = "auto",
) -> tuple[Integer[Array, "*batch l"], Integer[Array, "*batch"]]:
    """Algorithm 15: x̂ ← EDInference(z, θ̂). Translates a context, token by token, with Algorithm 8.

    Each token is drawn from ``q ∝ p^{1/τ}``, where p is the last column of ``EDTransformer(z, x̂ | θ̂)``, as in Algorithm
    14. ``l_max`` is the length at which to stop without eos_token, bos_token counted; None is that of the parameters.

    Returns:
        x̂ from bos_token to eos_token, padded with eos_token to l_max; and how many of its tokens are no padding.

    Departures: stops at l_max tokens, where the paper goes on until eos_token comes.

    Example:
        >>> from algorithms import EDTransformerConfig, init_ed_transformer
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> x_hat, length = ed_inference(jnp.array([0, 1]), theta, tau=1.0, key=jax.random.key(1))
        >>> x_hat.shape, int(x_hat[0])
        ((4,), 3)

    Source: Phuong and Hutter 2022, Algorithm 15.
    """
    N_V, batch = theta.W_e.shape[1], z.shape[:-1]
    l_max = l_max or _limit(theta, variant) or 0  # one of them is there
    x_hat = jnp.full((*batch, l_max), eos_token(N_V), jnp.int32).at[..., 0].set(bos_token(N_V))  # line 1
    y = jnp.zeros(batch, x_hat.dtype)  # line 2, where 0 means: not eos_token
    length = jnp.ones(batch, jnp.int32)
    x_hat, y, length = match_varying_axes((x_hat, y, length, z, theta, tau, key, z_length))[:3]

    def unfinished(state):
        _, y, _, i = state
        return jnp.any(y != eos_token(N_V)) & (i < l_max)  # line 3

    def generate(state):
        x_hat, y, length, i = state
        P = ed_transformer(  # line 4
            z, x_hat, theta, variant=variant, implementation=implementation, z_length=z_length
        )
        p = P[..., i - 1]  # line 5
        is_open = y != eos_token(N_V)
        y = jnp.where(is_open, sample(p, tau, fold_in(key, i - 1)), eos_token(N_V)).astype(x_hat.dtype)  # line 6
        x_hat = x_hat.at[..., i].set(y)  # line 7
        return x_hat, y, length + is_open, i + 1

    x_hat, _, length, _ = jax.lax.while_loop(unfinished, generate, (x_hat, y, length, jnp.asarray(1, jnp.int32)))
    return x_hat, length


def sample(
    p: Float[Array, "N_V *batch"], tau: float | Float[Array, ""], key: Key[Array, "*batch"]
) -> Integer[Array, "*batch"]:
    """Draw a token from ``q ∝ p^{1/τ}``: the likeliest (the first of several) at τ = 0, any at τ = ∞.

    The draw is made in float32 at least.

    Args:
        p: probabilities.
        tau: temperature τ.
        key: randomness, consumed; one for each distribution.
    """

    def draw(p, key):
        exponent = 1 / jnp.where(tau == 0, 1, tau)
        log_q = jnp.where(exponent == 0, 0, jnp.log(p) * exponent)
        return jnp.where(tau == 0, jnp.argmax(p), jax.random.categorical(key, log_q))

    for _ in range(key.ndim):
        draw = jax.vmap(draw, in_axes=(1, 0))
    return draw(p.astype(accumulation_dtype(p.dtype)), key)
