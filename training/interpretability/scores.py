"""Scores of heads: attending to the previous token, to a token's earlier copies, to what followed these."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer


def previous_token_scores(A: Float[Array, "L H l_z *batch l_x"]) -> Float[Array, "L H"]:
    """The mean attention of each token to the one before it."""
    return attention_to(A, jnp.eye(A.shape[2], A.shape[-1], k=1, dtype=bool))


def duplicate_token_scores(
    A: Float[Array, "L H l_z *batch l_x"], x: Integer[Array, "*batch l_x"]
) -> Float[Array, "L H"]:
    """The mean attention to earlier copies of the token, over the tokens that have any."""
    return attention_to(A, jnp.triu(x[..., :, None] == x[..., None, :], k=1))


def induction_scores(A: Float[Array, "L H l_z *batch l_x"], x: Integer[Array, "*batch l_x"]) -> Float[Array, "L H"]:
    """The mean attention to what followed earlier copies of the token, where there are any (Olsson et al. 2022)."""
    follows_copy = jnp.roll(x, 1, axis=-1)[..., :, None] == x[..., None, :]
    return attention_to(A, jnp.triu(follows_copy.at[..., 0, :].set(False)))  # the first token follows none


def attention_to(A: Float[Array, "L H l_z *batch l_x"], pattern: Bool[Array, "*#batch l_z l_x"]) -> Float[Array, "L H"]:
    """The mean attention to the context tokens of a pattern, over the tokens for which it has any."""
    pattern = jnp.broadcast_to(pattern, (*A.shape[3:-1], A.shape[2], A.shape[-1]))
    attended = jnp.where(jnp.moveaxis(pattern, -2, 0)[None, None], A, 0).sum(2)
    has_some = pattern.any(-2)
    return attended.sum(range(2, attended.ndim)) / jnp.maximum(has_some.sum(), 1)
