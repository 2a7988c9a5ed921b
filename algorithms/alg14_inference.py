"""Algorithms 14 and 15: sampling, with a full forward pass for every token, as printed.

``training.generation`` generates the same tokens faster.
"""

# pyright: reportGeneralTypeIssues=false
# The name of a loop's body is bound to what comes out of the loop, and its decorator reads what goes in.

from typing import Unpack

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer, Key

from algorithms.alg08_ed_transformer import ed_hidden_state
from algorithms.alg09_e_transformer import e_hidden_state
from algorithms.alg10_d_transformer import d_hidden_state
from algorithms.layers import zero_padding
from algorithms.loops import for_each, repeat_while
from algorithms.machinery.arrays import AnyArray, accumulation_dtype
from algorithms.machinery.contract import algorithm, compiled
from algorithms.machinery.naming import numbered
from algorithms.model.theta import DTransformerParams, EDTransformerParams, ETransformerParams
from algorithms.notation import Choice, ContextLength, Count, Length, Temperature, bos_token, eos_token, mask_token
from algorithms.ops.activation import log_softmax, shifted
from algorithms.ops.dropout import by_own_key, fold_in


@algorithm(14, "DInference")
def d_inference(
    x: Integer[AnyArray, "*batch l"],
    theta: DTransformerParams,
    *,
    l_gen: Count,
    tau: Temperature,
    key: Key[Array, "*batch"],
    **options: Unpack[Choice],
) -> Integer[Array, "*batch {l_gen}"]:
    """Algorithm 14: y ← DInference(x, θ̂). Continues a prompt by ``l_gen`` tokens, one by one, with Algorithm 10.

    Each token is drawn from ``q ∝ p^{1/τ}``, where p is the last column of ``DTransformer(x | θ̂)``: τ = 0 takes the
    likeliest token, 1 samples faithfully, inf uniformly. A batch has one τ, or one per prompt. Token i = 0 … l_gen − 1
    is drawn with ``fold_in(key, i)``. After a token ID outside [0, N_V), all are −1.
    Departures: none (columns past the last token are computed but ignored; of P, only log p is computed).

    Example:
        >>> theta = init_d_transformer(jax.random.key(0), DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> theta_hat = d_training(jnp.array([[3, 0, 1, 4]]), theta, N_epochs=50, eta=0.1)
        >>> d_inference(jnp.array([3]), theta_hat, l_gen=3, tau=0.0, key=jax.random.key(1)).tolist()
        [0, 1, 4]
    """
    l = x.shape[-1]  # line 1
    x = with_room(x, l_gen)

    @for_each(l_gen, x)  # line 2
    def x_y(i, x):
        X = d_hidden_state(x[..., :-1], theta)  # line 3, up to the softmax
        log_p = log_softmax(theta.variant.unembedding.logits(X[..., l + i - 1], theta))  # line 4
        y = sample(log_p, tau, fold_in(key, i))  # line 5
        x = x.at[..., l + i].set(y)  # line 6
        return x

    y = x_y[..., l:]  # return
    return y


@algorithm(15, "EDInference")
def ed_inference(
    z: Integer[AnyArray, "*batch l_z"],
    theta: EDTransformerParams,
    *,
    tau: Temperature,
    key: Key[Array, "*batch"],
    l_max: Count | None = None,
    z_length: ContextLength = None,
    **options: Unpack[Choice],
) -> tuple[Integer[Array, "*batch l"], Integer[Array, "*batch"]]:
    """Algorithm 15: x̂ ← EDInference(z, θ̂). Translates a context, token by token, with Algorithm 8.

    Each token is drawn from ``q ∝ p^{1/τ}``, where p is the last column of ``EDTransformer(z, x̂ | θ̂)``, as in Algorithm
    14. ``l_max``, the longest output including bos_token, defaults to that of the parameters. Returns
    x̂ from bos_token to eos_token, padded with eos_token to l_max, and its number of tokens before the padding.
    Departures: stops at l_max tokens, while the paper continues until eos_token.

    Example:
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)
        >>> theta_hat = ed_training(jnp.array([[0, 1]]), jnp.array([[3, 1, 4]]), theta, N_epochs=50, eta=0.1)
        >>> x_hat, length = ed_inference(jnp.array([0, 1]), theta_hat, tau=0.0, key=jax.random.key(1))
        >>> x_hat.tolist(), int(length)
        ([3, 1, 4, 4], 3)
    """
    bos, eos, batch = bos_token(theta.W_e.shape[1]), eos_token(theta.W_e.shape[1]), z.shape[:-1]
    l_max = l_max or theta.variant.embedding.limit(theta) or 0  # one of them is given
    x_hat = jnp.full((*batch, l_max), eos, jnp.int32).at[..., 0].set(bos)  # line 1
    y = jnp.zeros(batch, jnp.int32)  # line 2: any token but eos_token

    @repeat_while(lambda x_hat, y, l: jnp.any(y != eos) & (l < l_max), (x_hat, y, jnp.asarray(1)))  # line 3
    def x_hat(x_hat, y, l):
        X = ed_hidden_state(z, x_hat, theta, z_length=z_length)  # line 4, up to the softmax
        log_p = log_softmax(theta.variant.unembedding.logits(X[..., l - 1], theta))  # line 5
        y = jnp.where(y == eos, eos, sample(log_p, tau, fold_in(key, l - 1)))  # line 6; an x̂ that has ended stays ended
        x_hat = x_hat.at[..., l].set(y)  # line 7
        return x_hat, y, l + 1

    return x_hat, length_of(x_hat, eos)  # return


@compiled
def e_inference(
    x: Integer[AnyArray, "*batch l"],
    theta: ETransformerParams,
    *,
    steps: Count,
    tau: Temperature,
    key: Key[Array, "*batch"],
    mask: int | None = None,
    length: Length = None,
    **options: Unpack[Choice],
) -> Integer[Array, "*batch l"]:
    """Fills the masked tokens of x with Algorithm 9, the most confident first, as in masked diffusion.

    Step i = 0 … steps − 1 draws a token for each of the m that are still masked from ``q ∝ p^{1/τ}``, as in Algorithm
    14, and keeps the ⌈m/(steps − i)⌉ with the largest p, the first if tied. The token at t is drawn with
    ``fold_in(fold_in(key, i), t)``, and is never the masked one: ``mask``, by default mask_token.

    Example:
        >>> theta = init_e_transformer(jax.random.key(0), ETransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8))
        >>> y = e_inference(jnp.array([3, 2, 2, 4]), theta, steps=2, tau=0.0, key=jax.random.key(1))  # 2 is masked
        >>> y[0].item(), y[3].item(), (y == 2).any().item()
        (3, 4, False)

    Source: Nie et al. 2025, "Large Language Diffusion Models", section 2.4 (low-confidence remasking).
    """
    unknown, t = mask_token(theta.W_e.shape[1]) if mask is None else mask, jnp.arange(x.shape[-1])

    @for_each(steps, x.astype(jnp.int32))
    def x_hat(i, x):
        masked = (x == unknown) & (zero_padding(jnp.ones_like(x), length) > 0)
        X = e_hidden_state(x, theta, length=length)
        log_p = log_softmax(theta.variant.unembedding.logits(X, theta).at[unknown].set(-jnp.inf))
        keys = jax.vmap(lambda t: fold_in(fold_in(key, i), t), out_axes=key.ndim)(t)
        y = sample(log_p, jnp.broadcast_to(jnp.asarray(tau)[..., None], x.shape), keys)
        confidence = jnp.take_along_axis(log_p, y[None], axis=0)[0]
        rank = jnp.argsort(jnp.argsort(jnp.where(masked, -confidence, jnp.inf), axis=-1), axis=-1)
        n = -(-masked.sum(axis=-1, keepdims=True) // (steps - i))
        return jnp.where(masked & (rank < n), y, x)

    return x_hat


def with_room(x: Integer[Array, "*batch l"], n: int) -> Integer[Array, "*batch l_x"]:
    """The tokens of x, followed by room for n more."""
    return jnp.pad(x.astype(jnp.int32), [(0, 0)] * (x.ndim - 1) + [(0, n)])


def length_of(x: Integer[Array, "*batch l"], eos: int) -> Integer[Array, "*batch"]:
    """The number of tokens up to the first eos, itself included; all if there is none."""
    before_eos = (jnp.cumsum(x == eos, axis=-1) == 0).sum(axis=-1)
    return jnp.minimum(before_eos + 1, x.shape[-1]).astype(jnp.int32)


@numbered
def sample(
    log_p: Float[Array, "N_V *batch"], tau: float | Float[Array, "*#batch"], key: Key[Array, "*batch"]
) -> Integer[Array, "*batch"]:
    """Draw a token from ``q ∝ p^{1/τ}``: at τ = 0 the likeliest (the first if tied), at τ = ∞ any that is possible.

    ``log_p`` may be off by a constant, as logits are. The draw is in float32 at least; −1 where there is a NaN.
    """
    log_p = log_p.astype(accumulation_dtype(log_p.dtype))
    tau = jnp.asarray(tau, log_p.dtype)

    @by_own_key
    def draw(key, log_p, tau):
        log_q = tempered(log_p, tau)  # line 5 of Algorithm 14; line 6 of Algorithm 15
        return jax.random.categorical(key, log_q)

    for _ in range(key.ndim):
        draw = jax.vmap(draw, in_axes=(0, 1, 0 if tau.ndim else None))
    drawn = jnp.where(is_greedy(tau), jnp.argmax(log_p, axis=0), draw(key, log_p, tau))
    return jnp.where(jnp.isnan(log_p).any(axis=0), -1, drawn).astype(jnp.int32)


def tempered(log_p: Float[Array, "N_V *batch"], tau: Float[Array, "*#batch"]) -> Float[Array, "N_V *batch"]:
    """``log q`` with ``q ∝ p^{1/τ}``, shifted so that the largest is 0; impossible tokens stay so even at τ = ∞."""
    impossible = jnp.isneginf(log_p)
    divisor = jnp.where(is_greedy(tau), 1, tau)
    log_q = jnp.where(impossible, 0, shifted(log_p)) / (divisor[None] if tau.ndim else divisor)
    return jnp.where(impossible, -jnp.inf, log_q)


def is_greedy(tau: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
    """Whether a temperature is 0, or so small that a float cannot hold 1/τ."""
    return tau < jnp.finfo(tau.dtype).tiny
