"""What Algorithms 8, 9 and 10 share: a variant's lines, ready to be called, and the loop over the layers."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Shaped

from algorithms.alg01_embedding import token_embedding
from algorithms.machinery.arrays import indices
from algorithms.machinery.naming import numbered
from algorithms.machinery.sharding import shard_layer_input, shard_residual_stream
from algorithms.machinery.varying import match_varying_axes
from algorithms.masks import Mask, StructuralMask
from algorithms.model.attention import Attention
from algorithms.model.distances import NO_TABLE, Table
from algorithms.model.mlp import Activation
from algorithms.model.variant import Variant
from algorithms.notation import Implementation, OptionalKey, Remat, Unroll
from algorithms.ops.activation import activate
from algorithms.ops.attention.dispatch import ATTENTION_RESIDUALS
from algorithms.ops.attention.vendor import CUDNN_FORWARD
from algorithms.ops.dropout import fold_in
from algorithms.ops.linear import PRODUCT, linear

Layer = Callable[..., Float[Array, "d_e *batch l"]]


def attend_in_full(line: Attention, X: Array, Z: Array, W: Any, mask: Mask, **options: Any) -> tuple[Array, None]:
    """The attention of whole sequences, which keeps nothing for decoding."""
    is_self, X = X is Z, shard_layer_input(X)
    Z = X if is_self else shard_layer_input(Z)
    return shard_residual_stream(line(X, Z, W, mask, **options)), None


class Lines(NamedTuple):
    """The lines of a variant as functions of arrays, named as in the paper.

    The fields hold everything else that the lines need; `implementation`, `remat` and `unroll` are in the legend.
    """

    variant: Variant  # the record of the lines
    implementation: Implementation
    activation: Activation  # of the MLPs: the variant's, or the algorithm's own
    order: str  # of a layer: the variant's, or the algorithm's own
    key: OptionalKey = None  # for the dropout of all layers
    remat: Remat = False
    unroll: Unroll = False
    # computes one attention: ``attend(line, X, Z, 𝓦, mask, **options) → (Y, what to keep)``; for decoding, from a cache
    attend: Callable[..., tuple[Array, Any]] = attend_in_full
    kept: list[Any] | None = None  # collects what all layers keep, stacked, one item per attention; None: discarded
    table: Table = NO_TABLE  # what the attentions of all layers share
    # for the layer that is computed; set by `each_layer`
    l: Any = 0  # its number
    keys: Iterator[OptionalKey] = iter(())  # for its dropout, in the order in which its lines use them
    kept_here: list[Any] | None = None  # collects what its attentions keep; None: discarded

    def embedding(
        self, x: Integer[Array, "*columns"], t: Any, theta: Any, types: Integer[Array, "*columns"] | None = None
    ) -> Float[Array, "d_e *columns"]:
        """``W_e[:, x[t]] + W_p[:, t]`` for every token, by Algorithms 1 and 2.

        If θ has the parameters, token types are added, and a norm follows.
        """
        return self.at_positions(self.tokens(x, theta), x, t, theta, types)

    def tokens(self, x: Integer[Array, "*columns"], theta: Any) -> Float[Array, "d_in *columns"]:
        """``W_e[:, x[t]]`` for every token."""
        return shard_residual_stream(self.variant.embedding.tokens(x, theta, self.implementation))

    def at_positions(
        self, X: Float[Array, "d_in *columns"], x: Integer[Array, "*columns"], t: Any, theta: Any, types: Any = None
    ) -> Float[Array, "d_e *columns"]:
        """``X[:, t] + W_p[:, t]`` for every column, and the rest of the embedding: token types, norm, projection."""
        line = self.variant.embedding
        W_p_t = line.of_positions(_of_columns(t, x), theta, self.implementation)
        X = X if W_p_t is None else X + W_p_t
        if getattr(theta, "W_t", None) is not None:
            types = jnp.zeros_like(x) if types is None else jnp.broadcast_to(types, x.shape)
            X = X + token_embedding(types, theta.W_t, implementation=self.implementation)
        X = self.layer_norm(X, theta.embedding_norm)
        return shard_residual_stream(linear(theta.W_in, X, theta.b_in, self.implementation)) if line.factored else X

    def sharing(self, numbers: Any, x: Any, t: Any, theta: Any, *, both_ways: bool = False) -> "Lines":
        """The lines with the table that all attentions share: θ's distances, and positions for queries and keys."""
        P = self.variant.embedding.in_attention(_of_columns(t, x), theta, self.implementation)
        return self._replace(table=Table(numbers, both_ways, P))

    def layer_norm(self, X: Float[Array, "d *columns"], norm: Any) -> Float[Array, "d *columns"]:
        """``for t: layer_norm(X[:, t] | γ, β)``, Algorithm 6; X if θ has no norm here."""
        return X if norm is None else shard_residual_stream(self.variant.norm(X, norm, self.implementation))

    def before(self, X: Float[Array, "d *columns"], norm: Any) -> Float[Array, "d *columns"]:
        """The input of a sublayer: the norm of X if layers normalize first, otherwise X."""
        return self.layer_norm(X, norm) if self.order == "norm_first" else X

    def after(self, X: Float[Array, "d *columns"], norm: Any) -> Float[Array, "d *columns"]:
        """The sum after a sublayer: X if layers normalize first, otherwise the norm of X."""
        return X if self.order == "norm_first" else self.layer_norm(X, norm)

    def mh_attention(
        self, X: Float[Array, "d_e *batch l_x"], Z: Any, W: Any, mask: Any, t_x: Any, t_z: Any
    ) -> Float[Array, "d_e *batch l_x"]:
        """``MHAttention(X, Z | 𝓦, Mask)``, Algorithm 5, by the layer's attention line.

        Z and the mask, in any form that ``attend`` reads, are passed on to it; t_x and t_z are the positions of the
        columns of X and Z.
        """
        key, is_self = next(self.keys, None), X is Z

        def by(line):
            options = {"t_x": t_x, "t_z": t_z, "implementation": self.implementation, "rate": self.variant.dropout}
            options["table"] = self.table
            return lambda X, Z, W, key: self.attend(line, X, X if is_self else Z, W, mask, key=key, **options)

        lines = self.variant.attentions
        distinct = tuple(dict.fromkeys(lines))
        arguments = X, None if is_self else Z, W, key
        if len(distinct) == 1 or isinstance(self.l, int):
            Y, kept = by(lines[self.l % len(lines) if len(distinct) > 1 else 0])(*arguments)
        else:
            turn = jnp.asarray([distinct.index(line) for line in lines])[self.l % len(lines)]
            Y, kept = jax.lax.switch(turn, [by(line) for line in distinct], *arguments)
        if self.kept_here is not None:
            self.kept_here.append(kept)
        return Y

    def mlp(self, X: Float[Array, "d_e *columns"], W: Any) -> Float[Array, "d_e *columns"]:
        """``W_mlp2 f(W_mlp1 X + b_mlp1 1ᵀ) + b_mlp2 1ᵀ``; 0 in a variant without MLPs."""
        line, key = self.variant.mlp, next(self.keys, None)
        if line is None:
            return jnp.zeros_like(X)
        options: dict[str, Any] = {"f": self.activation, "rate": self.variant.dropout, "key": key}
        return shard_residual_stream(line(shard_layer_input(X), W, implementation=self.implementation, **options))

    def activate(self, X: Float[Array, "d *columns"]) -> Float[Array, "d *columns"]:
        """``f(X)``, with the activation of the MLPs."""
        return activate(self.activation, X, self.implementation)

    def unembedding(self, X: Float[Array, "d *columns"], theta: Any) -> Float[Array, "N_V *columns"]:
        """``softmax(W_u X)``, Algorithm 7."""
        return self.variant.unembedding(X, theta)

    def each_layer(
        self, layer: Layer, X: Float[Array, "d_e *batch l"], stacked: Any, *, reads: Any = (), draws: int = 2
    ) -> Float[Array, "d_e *batch l"]:
        """``for l = 1, …, L: X ← layer(X, θ_l, f_l)``, with the parameters and the lines of each layer.

        Args:
            layer: the body of the loop.
            X: the residual stream.
            stacked: the layers' parameters, stacked on axis 0, each used by ``variant.shared_layers`` consecutive
                layers; or a tuple with those of every layer.
            reads: the other arrays that ``layer`` reads, the same for all layers.
            draws: number of keys that a layer uses.
        """
        if isinstance(stacked, tuple) and not hasattr(stacked, "_fields"):
            for l, theta_l in enumerate(stacked):
                X = layer(X, theta_l, self._replace(l=l))
            return X

        shared = self.variant.shared_layers

        def turn(X, indexed):
            theta_l, l = indexed
            if shared > 1:
                theta_l = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, l // shared, keepdims=False), stacked)
            keys = (fold_in(self.key, draws * l + i) for i in range(draws))
            kept_here = []
            X = layer(X, theta_l, self._replace(l=l, keys=keys, kept_here=kept_here))
            return X, kept_here

        L = shared * jax.tree.leaves(stacked)[0].shape[0]
        X = match_varying_axes((X, stacked, reads, self.table, self.key))[0]
        each = None if shared > 1 else stacked
        turn = _recomputed(turn, self.remat, self.unroll)
        X, kept = jax.lax.scan(turn, X, (each, jnp.arange(L)), unroll=self.unroll)
        if self.kept is not None:
            self.kept.extend(kept)
        return X


def lines_of(
    variant: Variant,
    implementation: Implementation,
    activation: Activation,
    orders: tuple[str, ...],
    **options: Any,
) -> Lines:
    """The lines of a variant; the algorithm's ``activation`` and first of its ``orders`` apply unless it names others.

    ``orders`` are all that a layer of the algorithm may have, ``options`` other fields of `Lines`.

    Raises:
        ValueError: if the variant's order is not one of them.
    """
    order = variant.order or orders[0]
    if order not in orders:
        raise ValueError(f"variant.order: expected None or one of {', '.join(map(repr, orders))} here, got {order!r}")
    activation = (variant.mlp and variant.mlp.activation) or activation
    return Lines(variant, implementation, activation, order, **options)


@numbered
def side_by_side(mask: Any, t: Any) -> Layer:
    """Lines 5 to 8 of Algorithm 10 with attention and MLP in parallel: both read the layer's input."""

    def layer(X, theta_l, f):
        W, norm1, mlp, norm2 = theta_l
        X_tilde = f.layer_norm(X, norm1)  # line 5
        Y = f.mh_attention(X_tilde, X_tilde, W, mask, t, t)  # line 6, without its sum
        X_tilde = f.layer_norm(X, norm2)  # line 7
        X = X + Y + f.mlp(X_tilde, mlp)  # line 8
        return X

    return layer


def _recomputed(turn: Callable[..., Any], remat: Remat, unroll: Unroll) -> Callable[..., Any]:
    if not remat:
        return turn
    kept = {True: (), "all but attention": ATTENTION_RESIDUALS, "all but products": (*ATTENTION_RESIDUALS, PRODUCT)}
    by_name = jax.checkpoint_policies.save_only_these_names(*kept[remat])

    def policy(primitive, *arrays, **options):
        return by_name(primitive, *arrays, **options) or (remat is not True and primitive.name == CUDNN_FORWARD)

    return jax.checkpoint(turn, prevent_cse=unroll, policy=policy)


def _of_columns(t: Any, x: Any) -> Any:
    """Positions, with leading axes added so that they have as many axes as the tokens."""
    return t.reshape(*(1,) * (x.ndim - t.ndim), *t.shape)


def padded(mask: Any, length: Integer[Array, "*#batch"] | int | None) -> Any:
    """The mask, with context tokens from ``length`` on masked, too."""
    return mask if length is None else mask & StructuralMask(length=length)


def zero_padding(
    x: Integer[Array, "*batch l"], length: Integer[Array, "*#batch"] | int | None
) -> Integer[Array, "*batch l"]:
    """The sequence with token 0 where t >= length, so that the contents of the padding do not matter."""
    if length is None:
        return x
    length = jnp.asarray(length)
    length = length.reshape(*length.shape, *(1,) * (x.ndim - length.ndim))
    return jnp.where(positions_in(x) < length, x, 0)


def pad_embeddings(
    X: Float[Array, "d_e *batch l"], W: Float[Array, "d_e _"], length: Integer[Array, "*#batch"] | int | None
) -> Float[Array, "d_e *batch l"]:
    """Embeddings with the first column of W (W_e or W_in) where t >= length: with ε = 0, columns of 0 have no norm."""
    if length is None:
        return X
    real = zero_padding(jnp.ones(X.shape[1:], int), length) > 0
    return jnp.where(real[None], X, W[:, 0].reshape(-1, *(1,) * real.ndim).astype(X.dtype))


def positions_in(x: Shaped[Array, "*batch l"]) -> Any:
    """0 … l − 1, with as many axes as x: in NumPy, unless l is symbolic, as in ``jax.export``."""
    return indices(x.shape[-1]).reshape(*(1,) * (x.ndim - 1), x.shape[-1])
