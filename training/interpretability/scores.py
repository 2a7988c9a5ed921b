"""How much heads attend in a pattern: to the previous token, to the same token before, to what followed it."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer


def previous_token_scores(A: Float[Array, "L H l_z *batch l_x"]) -> Float[Array, "L H"]:
    """The mean attention of each token to the one before it."""
    t = jnp.arange(A.shape[-1])
    return attention_to(A, t[:, None] == t[None] - 1)


def duplicate_token_scores(
    A: Float[Array, "L H l_z *batch l_x"], x: Integer[Array, "*batch l_x"]
) -> Float[Array, "L H"]:
    """The mean attention to earlier tokens that are the same, of the tokens that have some."""
    t = jnp.arange(A.shape[-1])
    return attention_to(A, (x[..., :, None] == x[..., None, :]) & (t[:, None] < t[None]))


def induction_scores(A: Float[Array, "L H l_z *batch l_x"], x: Integer[Array, "*batch l_x"]) -> Float[Array, "L H"]:
    """The mean attention to what followed earlier tokens that are the same, of the tokens that have some.

    Source: Olsson et al. 2022, "In-context learning and induction heads".
    """
    t = jnp.arange(A.shape[-1])
    before = jnp.concatenate([jnp.full_like(x[..., :1], -1), x[..., :-1]], axis=-1)
    return attention_to(A, (before[..., :, None] == x[..., None, :]) & (t[:, None] <= t[None]))


def attention_to(A: Float[Array, "L H l_z *batch l_x"], pattern: Bool[Array, "*#batch l_z l_x"]) -> Float[Array, "L H"]:
    """The mean attention to the context tokens of a pattern, of the tokens for which it has some."""
    pattern = jnp.broadcast_to(pattern, (*A.shape[3:-1], A.shape[2], A.shape[-1]))
    attended = jnp.where(jnp.moveaxis(pattern, -2, 0)[None, None], A, 0).sum(2)
    has_some = pattern.any(-2)
    return attended.sum(range(2, attended.ndim)) / jnp.maximum(has_some.sum(), 1)
