"""The lines that Algorithms 8, 9 and 10 share, with a variant and an implementation filled in."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from algorithms.activations import activate
from algorithms.attention import mh_attention
from algorithms.dropout import dropout
from algorithms.embedding import lookup, sinusoidal_positional_embedding
from algorithms.linear import linear
from algorithms.masks import Mask
from algorithms.normalization import layer_norm_columns, rms_norm_columns
from algorithms.parameters import LayerNormParams, MHAttentionParams, MLPParams
from algorithms.registry import lines
from algorithms.variants import Variant

__all__ = ["Sublayers", "rematerialized", "without_padding"]


class Sublayers(NamedTuple):
    """The sublayers of a transformer.

    Attributes:
        variant: what differs from the pseudocode.
        implementation: how attention and the backward passes are computed.
        activation: the nonlinearity of the architecture, where the variant names no other.
    """

    variant: Variant
    implementation: str
    activation: str

    def embed(
        self,
        x: Int[Array, "*batch l"],
        t: Int[Array, "*#batch l"],
        W_e: Float[Array, "d_e N_V"],
        W_p: Float[Array, "d_e l_max"] | None,
    ) -> Float[Array, "d_e *batch l"]:
        """``W_e[:, x[t]] + W_p[:, t]`` of every token, as columns."""
        E = lookup(W_e, x, self.implementation)
        d_e, l = E.shape[0], E.shape[-1]
        if self.variant.scale_embedding:
            E = E * jnp.sqrt(d_e).astype(E.dtype)
        if W_p is None:
            W_p = sinusoidal_positional_embedding(d_e, l, base=10000, dtype=E.dtype)
        P = lookup(W_p, t, self.implementation)
        return E + P.reshape(d_e, *(1,) * (E.ndim - P.ndim), *P.shape[1:])

    def norm(self, X: Float[Array, "d *columns"], norm: LayerNormParams) -> Float[Array, "d *columns"]:
        """``for t: layer_norm(X[:, t] | γ, β)``, or the norm of the variant."""
        if norm.beta is None:
            return rms_norm_columns(X, norm.gamma, self.variant.epsilon, self.implementation)
        return layer_norm_columns(X, norm.gamma, norm.beta, self.variant.epsilon, self.implementation)

    def mh_attention(
        self,
        X: Float[Array, "d_e *batch l_x"],
        Z: Float[Array, "d_e *batch l_z"],
        W: MHAttentionParams,
        mask: Mask,
        key: Key[Array, "*batch"] | None,
    ) -> Float[Array, "d_e *batch l_x"]:
        """``MHAttention(X, Z | 𝓦, Mask)``."""
        return lines(mh_attention)(
            X, Z, W, mask, implementation=self.implementation, dropout=self.variant.dropout, key=key
        )

    def mlp(
        self, X: Float[Array, "d_e *batch l"], mlp: MLPParams, key: Key[Array, "*batch"] | None
    ) -> Float[Array, "d_e *batch l"]:
        """``W_mlp2 f(W_mlp1 X + b_mlp1 1ᵀ) + b_mlp2 1ᵀ``."""
        W_mlp1, b_mlp1, W_mlp2, b_mlp2 = mlp
        hidden = self.activate(linear(W_mlp1, X, b_mlp1, self.implementation))
        return linear(W_mlp2, dropout(hidden, self.variant.dropout, key), b_mlp2, self.implementation)

    def activate(self, X: Float[Array, "d *columns"]) -> Float[Array, "d *columns"]:
        """The nonlinearity of the architecture, or of the variant."""
        return activate(self.variant.activation or self.activation, X, self.implementation)


def without_padding(x: Int[Array, "*batch l"], length: Int[Array, "*batch"] | int | None) -> Int[Array, "*batch l"]:
    """X with token 0 where t >= length, so that nothing which stands in the padding can reach anything."""
    if length is None:
        return x
    return jnp.where(jnp.expand_dims(jnp.arange(x.shape[-1]), range(x.ndim - 1)) < jnp.asarray(length)[..., None], x, 0)


def rematerialized(remat: bool) -> Callable[[Callable], Callable]:
    """A decorator of layers: with ``remat``, the backward pass computes a layer again from its input X alone."""
    return functools.partial(jax.checkpoint, prevent_cse=False) if remat else lambda layer: layer
