"""The steps that the layers of Algorithms 8, 9 and 10 are made of, and the loop over the layers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Integer, Key

from algorithms.alg01_embedding import positional_embedding, sinusoid, token_embedding
from algorithms.alg03_attention import mh_attention
from algorithms.alg06_layer_norm import layer_norm, rms_norm
from algorithms.machinery.arrays import accumulation_dtype, are_numbers
from algorithms.machinery.sharding import shard_hidden_units, shard_layer_input, shard_residual_stream
from algorithms.machinery.varying import match_varying_axes
from algorithms.model.variants import Variant
from algorithms.notation import Implementation, Remat
from algorithms.ops.activation import activate
from algorithms.ops.attention.dispatch import ATTENTION_RESIDUALS
from algorithms.ops.dropout import dropout, fold_in
from algorithms.ops.linear import linear
from algorithms.parameters import LayerNormParams

Attend = Callable[..., Float[Array, "d_e *batch l_x"]]
Keys = Sequence[Key[Array, "*batch"] | None]


class Steps(NamedTuple):
    """Algorithms 1, 2, 5 and 6 and the MLP, with a variant and an implementation filled in.

    Attributes:
        variant: what differs from the pseudocode.
        implementation: how attention and the backward passes are computed.
        activation: the nonlinearity of the architecture, where the variant names no other.
        attend: instead of Algorithm 5: takes X, Z, 𝓦, the mask and a key. A decoding step reads a cache, say.
    """

    variant: Variant
    implementation: Implementation
    activation: str
    attend: Attend | None = None

    def token_embedding(self, x: Integer[Array, "*batch l"], theta: Any) -> Float[Array, "d_e *batch l"]:
        """``W_e[:, x[t]]`` of every token, as columns."""
        E = token_embedding(x, theta.W_e, implementation=self.implementation)
        E = shard_residual_stream(E)
        return E * jnp.sqrt(E.shape[0]).astype(E.dtype) if self.variant.scale_embedding else E

    def positional_embedding(
        self, x: Integer[Array, "*batch l"], theta: Any, positions: Integer[Array, "*#batch l"] | None = None
    ) -> Float[Array, "d_e *#batch l"]:
        """``W_p[:, t]`` of every position, as columns, or the sinusoids of the variant."""
        t = self.variant.first_position + (_positions_in(x) if positions is None else positions)
        t = t.reshape(*(1,) * (x.ndim - t.ndim), *t.shape)
        if theta.W_p is not None:
            return positional_embedding(jnp.asarray(t), theta.W_p, implementation=self.implementation)
        d_e, dtype, form = theta.W_e.shape[0], theta.W_e.dtype, self.variant.positions
        return jnp.asarray(sinusoid(t, d_e, base=10000, form=form, dtype=accumulation_dtype(dtype)), dtype)

    def layer_norm(
        self, X: Float[Array, "d *columns"], gamma: Float[Array, "d"], beta: Float[Array, "d"] | None
    ) -> Float[Array, "d *columns"]:
        """``for t: layer_norm(X[:, t] | γ, β)``, or the norm of the variant."""
        options: dict[str, Any] = {"epsilon": self.variant.epsilon, "implementation": self.implementation}
        return shard_residual_stream(
            rms_norm(X, gamma, **options) if beta is None else layer_norm(X, gamma, beta, **options)
        )

    def normalized(self, X: Float[Array, "d *columns"], norm: LayerNormParams | None) -> Float[Array, "d *columns"]:
        """The same where there are γ and β, which the paper does not have at this place, and X itself where not."""
        return X if norm is None else self.layer_norm(X, *norm)

    def mh_attention(
        self,
        X: Float[Array, "d_e *batch l_x"],
        Z: Any,
        W: Any,
        mask: Any,
        key: Key[Array, "*batch"] | None,
    ) -> Float[Array, "d_e *batch l_x"]:
        """``MHAttention(X, Z | 𝓦, Mask)``; Z, 𝓦 and its mask are what ``attend`` reads, where there is one."""
        if self.attend is not None:
            return self.attend(X, Z, W, mask, key)
        options: dict[str, Any] = {"implementation": self.implementation, "dropout": self.variant.dropout, "key": key}
        X, Z = (shard_layer_input(X),) * 2 if X is Z else (shard_layer_input(X), shard_layer_input(Z))
        return shard_residual_stream(mh_attention(X, Z, W, mask, **options))

    def mlp(
        self,
        X: Float[Array, "d_e *batch l"],
        W_mlp1: Float[Array, "d_mlp d_e"],
        b_mlp1: Float[Array, "d_mlp"],
        W_mlp2: Float[Array, "d_e d_mlp"],
        b_mlp2: Float[Array, "d_e"],
        key: Key[Array, "*batch"] | None,
    ) -> Float[Array, "d_e *batch l"]:
        """``W_mlp2 f(W_mlp1 X + b_mlp1 1ᵀ) + b_mlp2 1ᵀ``, where f is the nonlinearity."""
        hidden = shard_hidden_units(self.activate(linear(W_mlp1, shard_layer_input(X), b_mlp1, self.implementation)))
        return shard_residual_stream(
            linear(W_mlp2, dropout(hidden, self.variant.dropout, key), b_mlp2, self.implementation)
        )

    def activate(self, X: Float[Array, "d *columns"]) -> Float[Array, "d *columns"]:
        """The nonlinearity of the architecture, or of the variant."""
        return activate(self.variant.activation or self.activation, X, self.implementation)


def for_each_layer(
    layer: Callable[..., Array],
    X: Float[Array, "d_e *batch l"],
    stacked: Any,
    *arguments: Any,
    key: Key[Array, "*batch"] | None,
    draws: int = 2,
    remat: Remat = False,
) -> Float[Array, "d_e *batch l"]:
    """``for l = 1, …, L: X ← layer(X, parameters of l, *arguments, keys of l)``.

    Args:
        layer: the body of the loop.
        X: the residual stream.
        stacked: the parameters of all layers, stacked on axis 0.
        arguments: what all layers are given.
        key: randomness of all layers, or None.
        draws: how many keys a layer needs.
        remat: what is computed again in the backward pass.
    """

    def turn(X, indexed):
        theta_l, l = indexed
        keys = [fold_in(key, draws * l + i) for i in range(draws)]
        return layer(X, theta_l, *arguments, keys), None

    L = jax.tree.leaves(stacked)[0].shape[0]
    X = match_varying_axes((X, stacked, arguments, key))[0]
    X, _ = jax.lax.scan(_computed_again(turn, remat), X, (stacked, jnp.arange(L)))
    return X


def _computed_again(turn: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    if not remat:
        return turn
    kept = () if remat is True else ATTENTION_RESIDUALS
    policy = jax.checkpoint_policies.save_only_these_names(*kept)
    return jax.checkpoint(turn, prevent_cse=False, policy=policy)


def zero_padding(
    x: Integer[Array, "*batch l"], length: Integer[Array, "*#batch"] | int | None
) -> Integer[Array, "*batch l"]:
    """X with token 0 where t >= length, so that nothing which stands in the padding can reach anything."""
    if length is None:
        return x
    length = jnp.asarray(length)
    length = length.reshape(*length.shape, *(1,) * (x.ndim - length.ndim))
    return jnp.where(_positions_in(x) < length, x, 0)


def _positions_in(x: Integer[Array, "*batch l"]) -> Any:
    """0 … l − 1, with as many axes as x; of NumPy, unless l is a symbol, in ``jax.export``."""
    l = x.shape[-1]
    t = np.arange(l) if are_numbers(l) else jnp.arange(l)
    return t.reshape(*(1,) * (x.ndim - 1), l)
