"""What Algorithms 8, 9 and 10 share: a variant's lines, ready to be called, and the loop over the layers."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Shaped

from algorithms.alg01_embedding import token_embedding
from algorithms.loops import one_loop, read_by
from algorithms.machinery.arrays import indices
from algorithms.machinery.naming import numbered
from algorithms.machinery.platform import platform_of
from algorithms.machinery.sharding import shard_layer_input, shard_residual_stream
from algorithms.machinery.varying import match_varying_axes
from algorithms.masks import StructuralMask
from algorithms.model.attention import Memory
from algorithms.model.distances import Table
from algorithms.model.mlp import Activation
from algorithms.model.variant import Variant
from algorithms.notation import Implementation, OptionalKey, Remat, Unroll
from algorithms.ops.activation import activate
from algorithms.ops.attention.dispatch import ATTENTION_RESIDUALS
from algorithms.ops.attention.vendor import CUDNN_FORWARD
from algorithms.ops.dropout import fold_in
from algorithms.ops.linear import PRODUCT, linear
from algorithms.orders import NormFirst, in_order

Layer = Callable[..., Float[Array, "d_e *batch l"]]
Tokens = Integer[Array, "*batch l"]
Columns = Float[Array, "d_e *batch l"]
"""Embeddings, in place of tokens."""


class How(NamedTuple):
    """What an internal caller of Algorithms 8 to 10 asks for besides the paper's lines; by default, nothing."""

    __internal__ = True  # so that `help` does not show it

    positions: Any = None  # of the columns; None: 0 … l − 1
    remat: Remat = False  # in the legend, like `unroll`
    unroll: Unroll = False
    memory: Any = None  # the `Memory` of self-attention; None: nothing but x
    context: Any = None  # and of attention to a context; None: nothing but the context
    hidden: bool = False  # whether the result is the hidden state X, and not P
    first_layer: int = 0  # the number of θ's first layer, if θ has only some layers of a model

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        asked = {name: value for name, value in self._asdict().items() if value is not self._field_defaults[name]}
        return f"How({', '.join(f'{name}={value!r}' for name, value in asked.items())})"


PLAIN = How()

PRODUCTS = ("dot_general", "ragged_dot_general")
"""JAX's primitives for products of matrices."""


class Lines(NamedTuple):
    """The lines of θ's variant as functions of arrays, named as in the paper.

    The fields hold everything else that the lines need; `How` and the legend describe most of them. None changes: what
    an attention keeps is set on the `Memory` of its layer, which `each_layer` makes, and on that which the caller gave.
    """

    variant: Variant  # the record of the lines
    activation: Activation  # of MLPs whose line has none
    order: str | None  # of a layer's lines, if not the algorithm's own
    t: Any  # the positions of the columns
    table: Table  # what the attentions of all layers share
    implementation: Implementation
    dropout: float
    key: OptionalKey  # for the dropout of all layers
    length: Any  # of each sequence, if it is padded
    z_length: Any  # of each context, if it is padded
    how: How
    memory: Memory  # of self-attention
    context: Memory  # and of attention to a context
    # for the layer that is computed; set by `each_layer`
    l: Any = 0  # its number
    draws: int = 2  # how many of its lines may drop something

    def embedding(self, x: Tokens | Columns, theta: Any, types: Any = None) -> Float[Array, "d_e *columns"]:
        """``W_e[:, x[t]] + W_p[:, t]`` for every token, by Algorithms 1 and 2; columns of embeddings stay as they are.

        If θ has the parameters, token types are added, and a norm follows.
        """
        is_embedded = jnp.issubdtype(x.dtype, jnp.floating)
        x = x if is_embedded else zero_padding(x, self.length)
        X = x if is_embedded else self.at_positions(self.tokens(x, theta), x, theta, types)
        W_in = getattr(theta, "W_in", None)
        if is_embedded or hasattr(theta, "W_in"):  # hasattr: Algorithm 9, whose padding gets the first column, too
            X = pad_embeddings(X, theta.W_e if W_in is None else W_in, self.length)
        return X

    def tokens(self, x: Integer[Array, "*columns"], theta: Any) -> Float[Array, "d_in *columns"]:
        """``W_e[:, x[t]]`` for every token."""
        return shard_residual_stream(self.variant.embedding.tokens(x, theta, self.implementation))

    def at_positions(
        self, X: Float[Array, "d_in *columns"], x: Integer[Array, "*columns"], theta: Any, types: Any = None
    ) -> Float[Array, "d_e *columns"]:
        """``X[:, t] + W_p[:, t]`` for every column, and the rest of the embedding: token types, norm, projection."""
        line = self.variant.embedding
        W_p_t = line.of_positions(_of_columns(self.t, x), theta, self.implementation)
        X = X if W_p_t is None else X + W_p_t
        if getattr(theta, "W_t", None) is not None:
            types = jnp.zeros_like(x) if types is None else jnp.broadcast_to(types, x.shape)
            X = X + token_embedding(types, theta.W_t, implementation=self.implementation)
        X = self.layer_norm(X, theta.embedding_norm)
        return shard_residual_stream(linear(theta.W_in, X, theta.b_in, self.implementation)) if line.factored else X

    def layer_norm(self, X: Float[Array, "d *columns"], norm: Any) -> Float[Array, "d *columns"]:
        """``for t: layer_norm(X[:, t] | γ, β)``, Algorithm 6; X if θ has no norm here."""
        return X if norm is None else shard_residual_stream(self.variant.norm(X, norm, self.implementation))

    def mh_attention(
        self, X: Float[Array, "d_e *batch l_x"], Z: Any, W: Any, mask: Any
    ) -> Float[Array, "d_e *batch l_x"]:
        """``MHAttention(X, Z | 𝓦, Mask)``, Algorithm 5, by the layer's attention line and with its memory.

        Padding is masked, too. A memory may have keys and values instead of Z.
        """
        is_self = X is Z
        mask = padded(mask, self.length if is_self else self.z_length)
        X, W = self._normalized(X, W)
        memory, X = self.memory if is_self else self.context, shard_layer_input(X)
        Z = None if is_self else shard_layer_input(Z)
        options = {"t_x": self.t, "t_z": self.t if is_self else None, "table": self.table}
        options |= {"implementation": self.implementation, "dropout": self.dropout}

        def by(line):
            return lambda X, Z, W, key: line(X, X if is_self else Z, W, mask, memory, key=key, **options)

        arguments = X, Z, W, self._key(0 if is_self else 1)
        Y, memory.kept = self.variant.by_attention(self.l, by, *arguments)
        return shard_residual_stream(Y)

    def mlp(self, X: Float[Array, "d_e *columns"], W: Any) -> Float[Array, "d_e *columns"]:
        """``W_mlp2 f(W_mlp1 X + b_mlp1 1ᵀ) + b_mlp2 1ᵀ``; 0 in a variant without MLPs."""
        line = self.variant.mlp
        if line is None:
            return jnp.zeros_like(X)
        X, W = self._normalized(X, W)
        options: dict[str, Any] = {
            "f": line.activation or self.activation,
            "rate": self.dropout,
            "key": self._key(self.draws - 1),
        }
        return shard_residual_stream(line(shard_layer_input(X), W, implementation=self.implementation, **options))

    @numbered
    def projection(self, X: Float[Array, "d_e *columns"], theta: Any) -> Float[Array, "d_f *columns"]:
        """``f(W_f X + b_f 1ᵀ)``, with the activation of the MLPs; X if θ has no W_f."""
        X = jnp.asarray(X)  # line 9 of Algorithm 9: the loop has ended
        if theta.W_f is None:
            return X
        f = (self.variant.mlp and self.variant.mlp.activation) or self.activation
        return activate(f, linear(theta.W_f, X, theta.b_f, self.implementation), self.implementation)

    def unembedding(self, X: Float[Array, "d *columns"], theta: Any) -> Float[Array, "N_V *columns"]:
        """``softmax(W_u X)``, Algorithm 7; X if the caller wants the hidden state."""
        return X if self.how.hidden else self.variant.unembedding(X, theta)

    def _normalized(self, X, W):
        return (self.layer_norm(X, W.norm), W.W) if isinstance(W, NormFirst) else (X, W)

    def _key(self, i: int) -> OptionalKey:
        """The key of the layer's line number i of those that drop something."""
        return None if self.key is None else fold_in(self.key, self.draws * self.l + i)

    def each_layer(self, X: Any, stacked: Any, first: Any = None) -> Callable[[Layer], Any]:
        """``for l = 1, …, L: X ← layer(X, θ_l)``, written above the body of the loop, as in `algorithms.loops`.

        A variant with another order of the layer's lines replaces the body, see `algorithms.orders`.

        Args:
            X: the residual stream.
            stacked: the layers' parameters, stacked on axis 0, each used by ``variant.shared_layers`` consecutive
                layers; or a tuple with those of every layer.
            first: the stacked MLPs of the first layers, if ``stacked`` has only those of the rest.
        """

        def run(layer):
            reads = read_by(layer)
            body = in_order(self.order, layer, reads)
            if isinstance(stacked, tuple) and not hasattr(stacked, "_fields"):
                return self._one_by_one(body, X, stacked)
            return (
                self._scan(body, X, stacked, reads) if first is None else self._stacks(body, X, stacked, first, reads)
            )

        return run

    def _from(self, l: int) -> "Lines":
        """The lines of layer l, and of the layers until the lines change."""
        l = self.how.first_layer + l
        return self._replace(variant=self.variant.from_layer(l), how=self.how._replace(first_layer=l))

    def _one_by_one(self, layer, X, layers):
        kept = []
        for l, theta_l in enumerate(layers):
            memory, context = self.memory.of_layer(l), self.context.of_layer(l)
            lines = self._from(l)
            X = layer(X, theta_l, lines._replace(l=lines.how.first_layer, key=None, memory=memory, context=context))
            kept.append(memory.kept)
        self.memory.kept = tuple(kept)
        return X

    def _stacks(self, layer, X, stacked, first, reads):
        n = len(jax.tree.leaves(first)[0])
        parts = [(slice(0, n), first), (slice(n, None), stacked.mlp)]

        def run(X, kept):
            found = []
            for at, mlp in parts:
                of_part = functools.partial(jax.tree.map, lambda a, at=at: a[at])
                memory = Memory(self.memory.how, of_part(kept))
                layers = of_part(stacked._replace(mlp=None))._replace(mlp=mlp)
                X = self._from(at.start)._replace(memory=memory)._scan(layer, X, layers, reads)
                found.append(memory.kept)
            return X, jax.tree.map(lambda *a: jnp.concatenate(a), *found)

        X, self.memory.kept = one_loop(run)(X, self.memory.kept)
        return X

    def _scan(self, layer, X, stacked, reads):
        shared, draws = self.variant.shared_layers, 3 if hasattr(stacked, "cross_attention") else 2

        def turn(X, of_layer):
            theta_l, l, kept = of_layer
            if shared > 1:
                theta_l = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, l // shared, keepdims=False), stacked)
            memory = Memory(self.memory.how, kept)
            X = layer(X, theta_l, self._replace(l=self.how.first_layer + l, draws=draws, memory=memory))
            return X, memory.kept

        L = shared * jax.tree.leaves(stacked)[0].shape[0]
        X = match_varying_axes((X, stacked, reads, self.table, self.key))[0]
        each = None if shared > 1 else stacked
        turn, unroll = _recomputed(turn, self.how.remat, self.how.unroll, X), self.how.unroll
        X, self.memory.kept = jax.lax.scan(turn, X, (each, jnp.arange(L), self.memory.kept), unroll=unroll)
        return X


class Own(NamedTuple):
    """What an algorithm has where a variant names nothing else."""

    activation: Activation
    orders: tuple[str, ...]  # those that its layers may have, its own first
    both_ways: bool = False  # whether tokens also attend to later ones
    distances: str = "distances"  # the field of θ with its scores by distance


OWN = {
    "encoder of Algorithm 8": Own("relu", ("norm_last", "norm_first", "no_norm"), True, "encoder_distances"),
    "decoder of Algorithm 8": Own("relu", ("norm_last", "norm_first", "no_norm"), False, "decoder_distances"),
    "Algorithm 9": Own("gelu", ("norm_last", "norm_first", "no_norm"), True),
    "Algorithm 10": Own("gelu", ("norm_first", "norm_last", "side_by_side", "no_norm")),
}


def lines_of(
    algorithm: str,
    x: Tokens | Columns,
    theta: Any,
    implementation: Implementation,
    dropout: float = 0.0,
    key: OptionalKey = None,
    *,
    length: Any = None,
    z_length: Any = None,
    how: How = PLAIN,
) -> Lines:
    """The lines of θ's variant for a sequence x, tokens or columns of embeddings, with its positions.

    ``algorithm`` is one of `OWN`; the rest are fields of `Lines`. Raises ValueError if the algorithm has no layers in
    the variant's order.
    """
    own, variant = OWN[algorithm], theta.variant
    order = variant.order or own.orders[0]
    if order not in own.orders:
        orders = ", ".join(map(repr, own.orders))
        raise ValueError(f"variant.order: expected None or one of {orders} here, got {order!r}")
    order = None if order in (own.orders[0], "no_norm") else order  # None: the body as printed
    x = x[0] if jnp.issubdtype(x.dtype, jnp.floating) else x
    t = positions_in(x) if how.positions is None else how.positions
    positions = variant.embedding.in_attention(_of_columns(t, x), theta, implementation)
    table = Table(getattr(theta, own.distances), own.both_ways, positions)
    memories = how.memory or Memory(), how.context or Memory()
    return Lines(
        variant, own.activation, order, t, table, implementation, dropout, key, length, z_length, how, *memories
    )


def _recomputed(turn: Callable[..., Any], remat: Remat, unroll: Unroll, X: Any) -> Callable[..., Any]:
    """A layer whose backward pass recomputes what ``remat`` says.

    In a loop on a GPU, it always recomputes norms and activations: storing them would move more bytes. No product is
    computed twice for that.
    """
    if not remat and (unroll or platform_of(X) not in ("gpu", "cuda")):
        return turn
    kept = {True: (), "all but attention": ATTENTION_RESIDUALS}.get(remat, (*ATTENTION_RESIDUALS, PRODUCT))
    by_name = jax.checkpoint_policies.save_only_these_names(*kept)
    by_primitive = () if remat is True else (CUDNN_FORWARD, *(() if remat else PRODUCTS))

    def policy(primitive, *arrays, **options):
        return by_name(primitive, *arrays, **options) or primitive.name in by_primitive

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
