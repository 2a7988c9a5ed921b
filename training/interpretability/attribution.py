"""What every head and every MLP adds to a logit, directly: the terms of the sum that the residual stream is."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms import PAPER, DTransformerParams, Variant
from algorithms.model.norm import RMSNorm

READS = ("X@3", "Y@2", "X@8")
"""What `attribution` reads, to be recorded of Algorithm 10."""


class Attribution(NamedTuple):
    """What each part of the model adds to a weighted sum of logits; all together they are that sum.

    Attributes:
        embedding: of lines 1-3.
        heads: of each head.
        b_o: of the bias of each attention.
        mlp: of each MLP.
        constant: of β and b_u.
    """

    embedding: Float[Array, "*columns"]
    heads: Float[Array, "L H *columns"]
    b_o: Float[Array, "L *columns"]
    mlp: Float[Array, "L *columns"]
    constant: Float[Array, ""]

    def total(self) -> Float[Array, "*columns"]:
        """The weighted sum of the logits."""
        return self.embedding + self.heads.sum((0, 1)) + self.b_o.sum(0) + self.mlp.sum(0) + self.constant


def attribution(
    seen: Mapping[str, Array],
    theta: DTransformerParams,
    weights: Float[Array, "N_V"],
    variant: Variant = PAPER,
) -> Attribution:
    """Attribute ``weightsᵀ logits`` of every column, with the last norm's scale as it is in this run.

    ``logits = W_u (γ ⊙ (X − m)/√(v + ε) + β) + b_u`` is linear in X, which is the sum of what lines 3, 6 and 8 add.

    Args:
        seen: `READS`, recorded.
        theta: the parameters, of Algorithm 10.
        weights: of the logits: 1 for a token, or 1 and −1 for the difference of two.
        variant: the lines.

    Raises:
        ValueError: if a norm or a cap stands behind a sum, so that the parts do not add up.
    """
    _check_adds_up(theta, variant)
    X, W = seen["X@8"], theta.layers.attention
    direction = variant.unembedding.matrix(theta).T @ weights
    constant = jnp.zeros((), X.dtype) if theta.b_u is None else weights @ theta.b_u
    scale = jnp.ones(X.shape[2:], X.dtype)
    if theta.norm is not None:
        rms, last = isinstance(variant.norm, RMSNorm), X[-1]
        offset = variant.norm.offset if isinstance(variant.norm, RMSNorm) else 0.0
        m = 0 if rms else last.mean(0, keepdims=True)
        scale = 1 / jnp.sqrt(jnp.square(last - m).mean(0) + variant.norm.epsilon)
        constant = constant + (0 if theta.norm.beta is None else direction @ theta.norm.beta)
        direction = (theta.norm.gamma + offset) * direction
        direction = direction if rms else direction - direction.mean()  # dᵀ(X − m) = (d − its mean)ᵀX

    L, H, d_mid = seen["Y@2"].shape[:3]
    of_heads = jnp.einsum("d,ldhm->lhm", direction, W.W_o.reshape(L, -1, H, d_mid))
    heads = jnp.einsum("lhm,lhm...->lh...", of_heads, seen["Y@2"]) * scale
    b_o = jnp.zeros(L, X.dtype) if W.b_o is None else W.b_o @ direction
    b_o = b_o.reshape(L, *(1,) * scale.ndim) * scale[None]
    embedding = jnp.tensordot(direction, seen["X@3"], 1) * scale
    after = jnp.einsum("d,ld...->l...", direction, X) * scale
    mlp = jnp.diff(after, axis=0, prepend=embedding[None]) - heads.sum(1) - b_o
    return Attribution(embedding, heads, b_o, mlp, constant)


def _check_adds_up(theta: DTransformerParams, variant: Variant) -> None:
    if not isinstance(theta, DTransformerParams):
        raise ValueError(
            f"theta: expected parameters of Algorithm 10, got {type(theta).__name__}, whose layers normalize their sums"
        )
    if any(line.normalize_output is not None for line in variant.attentions):
        raise ValueError(
            "variant.attention.normalize_output: expected None, got a norm behind the sum over the heads, "
            "through which no head has a part of its own"
        )
    if variant.unembedding.cap is not None:
        raise ValueError(
            f"variant.unembedding.cap: expected None, got {variant.unembedding.cap}, through which logits are no sum"
        )
