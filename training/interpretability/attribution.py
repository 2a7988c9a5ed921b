"""Direct logit attribution: what each head and each MLP adds to a logit, as terms of the residual stream's sum."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms import DTransformerParams
from algorithms.lines import Attention, RMSNorm
from algorithms.model.theta import every_layer

READS = ("X@3", "Y@2", "X@8")  # the values of Algorithm 10 that `attribution` reads


class Attribution(NamedTuple):
    """Contributions of the model's parts to a weighted sum of logits; they add up to that sum."""

    embedding: Float[Array, "*columns"]  # lines 1-3
    heads: Float[Array, "L H *columns"]
    b_o: Float[Array, "L *columns"]  # the bias of each attention
    mlp: Float[Array, "L *columns"]
    constant: Float[Array, ""]  # β and b_u

    def total(self) -> Float[Array, "*columns"]:
        """The weighted sum of the logits."""
        return self.embedding + self.heads.sum((0, 1)) + self.b_o.sum(0) + self.mlp.sum(0) + self.constant


def attribution(seen: Mapping[str, Array], theta: DTransformerParams, weights: Float[Array, "N_V"]) -> Attribution:
    """Attribute ``weightsᵀ logits`` of each column, with the last norm's scale held at its value in this run. Then
    ``logits = W_u (γ ⊙ (X − m)/√(v + ε) + β) + b_u`` is linear in X, the sum of what lines 3, 6 and 8 add. `seen` are
    the values `READS`; weights are 1 for one token, or 1 and −1 for a difference. Raises ValueError if a norm or a cap
    follows a sum.
    """
    _check_adds_up(theta)
    X, W = seen["X@8"], every_layer(theta.layers, theta.variant, lambda W: W.attention)
    direction, constant, scale = _last_line(X[-1], theta, weights)
    L, H, d_mid = seen["Y@2"].shape[:3]
    added = theta.variant.residual_factor * direction
    of_heads = jnp.einsum("d,ldhm->lhm", added, W.W_o.reshape(L, -1, H, d_mid))
    heads = jnp.einsum("lhm,lhm...,...->lh...", of_heads, seen["Y@2"], scale)
    b_o = jnp.zeros((L, *scale.shape), X.dtype)
    if W.b_o is not None:
        b_o = jnp.einsum("ld,d,...->l...", W.b_o, added, scale)
    embedding = jnp.einsum("d,d...,...->...", direction, seen["X@3"], scale)
    after = jnp.einsum("d,ld...,...->l...", direction, X, scale)
    mlp = jnp.diff(after, axis=0, prepend=embedding[None]) - heads.sum(1) - b_o
    return Attribution(embedding, heads, b_o, mlp, constant)


def _last_line(
    X: Float[Array, "d_e *columns"], theta: DTransformerParams, weights: Float[Array, "N_V"]
) -> tuple[Float[Array, "d_e"], Float[Array, ""], Float[Array, "*columns"]]:
    """Return ``weightsᵀ logits`` in the form ``direction·X scale + constant``."""
    direction = theta.variant.unembedding.matrix(theta).T @ weights
    constant = jnp.zeros((), X.dtype) if theta.b_u is None else weights @ theta.b_u
    if theta.norm is None:
        return direction, constant, jnp.ones(X.shape[1:], X.dtype)
    gamma, beta = theta.norm
    gamma = jnp.ones(len(X), X.dtype) if gamma is None else gamma
    if beta is not None:
        constant = constant + direction @ beta
    norm = theta.variant.norm
    if isinstance(norm, RMSNorm):
        square = jnp.square(X).mean(0)
        return (gamma + norm.offset * norm.gamma) * direction, constant, 1 / jnp.sqrt(square + norm.epsilon)
    direction = gamma * direction  # then dᵀ(X − m) = (d − mean(d))ᵀX
    return direction - direction.mean(), constant, 1 / jnp.sqrt(X.var(0) + norm.epsilon)


def _check_adds_up(theta: DTransformerParams) -> None:
    if not isinstance(theta, DTransformerParams):
        raise ValueError(
            f"theta: expected parameters of Algorithm 10, got {type(theta).__name__}, whose layers normalize their sums"
        )
    if theta.W_f is not None:
        raise ValueError(
            "theta.variant.unembedding.projected: expected False, since no layer adds to f(W_f X), got True"
        )
    for line in theta.variant.attentions:
        if getattr(type(line), "result", None) is not Attention.result or not hasattr(line.shapes(), "W_o"):
            raise ValueError(
                f"variant.attention: expected Attention.result and W_o Y + b_o 1ᵀ, got {type(line).__name__}'s own, "
                "whose heads need not have separate parts"
            )
    if any(getattr(line, "normalize_output", None) is not None for line in theta.variant.attentions):
        raise ValueError(
            "variant.attention.normalize_output: expected None, got a norm after the sum over the heads, "
            "so no head has a separate part"
        )
    cap = theta.variant.unembedding.cap
    if cap is not None:
        raise ValueError(f"variant.unembedding.cap: expected None, got {cap}, so the logits are not a sum")
