"""The building blocks of Algorithms 8 to 10 for a given variant, and the loop over the layers."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Shaped

from algorithms.alg01_embedding import token_embedding
from algorithms.machinery.arrays import indices, of_all_heads
from algorithms.machinery.devices import match_varying_axes, platform_of, shard
from algorithms.machinery.naming import through_layers
from algorithms.machinery.options import dropout_key, static, using
from algorithms.masks import StructuralMask
from algorithms.model.mixer import Mixer, MixerMetadata
from algorithms.model.positions import DistanceTable
from algorithms.model.theta import Layers, count_layers, stacks_of
from algorithms.model.variant import LayerLines, Variant
from algorithms.notation import OptionalKey
from algorithms.ops.activation import activate, gelu
from algorithms.ops.attention.dispatch import ATTENTION_RESIDUALS
from algorithms.ops.attention.vendor import CUDNN_FORWARD
from algorithms.ops.dropout import fold_in
from algorithms.ops.linear import PRODUCT, linear
from algorithms.orders import NormFirst, in_order

Layer = Callable[..., Float[Array, "d_e *batch l"]]
Tokens = Integer[Array, "*batch l"]
Columns = Float[Array, "d_in *batch l"]
"""Embeddings in place of tokens."""


class MixerCaches(NamedTuple):
    """Mixer caches, one entry a stack of layers, or those of one layer. None: nothing is cached."""

    own: Any = None  # of self-attention and other mixers of the sequence itself
    context: Any = None  # of cross-attention
    lent: Any = None  # what later layers read of these, within the loop over the layers


CacheSelection = Callable[[Mixer, Any], Any]
"""Selects which part of a mixer's state goes into the cache."""

PRODUCTS = ("dot_general", "ragged_dot_general")
"""JAX's primitives for products of matrices."""

EARNED = 4000
"""Updates in which an H200 saves with unrolled layers what these take to compile: 0.24 ms each, and 0.8 s a layer."""
MOST_UNROLLED = 48  # layers, so that compiling takes a minute at most


def earn_unrolling(updates: int, L: int, platform: str) -> bool:
    """Whether unrolling L layers saves more time in this many updates than it takes to compile; only on a GPU."""
    return platform == "gpu" and updates >= EARNED and L <= MOST_UNROLLED


def for_updates(updates: int, theta: Any) -> AbstractContextManager[None]:
    """A context for one of this many updates of θ, in which its layers are unrolled if that saves time."""
    stacks = (getattr(theta, name, None) for name in ("layers", "encoder", "decoder"))
    L = sum(count_layers(layers, theta.variant) for layers in stacks if layers is not None)
    return using(unroll=earn_unrolling(updates, L, platform_of(theta.W_e)))


class Lines(NamedTuple):
    """The lines of θ's variant as functions of arrays, named as in the paper, made by `lines_of`.

    The fields are everything else that the lines read; most are in the legend.
    """

    variant: Variant  # the record of the lines
    order: str  # the algorithm's own, of a layer's lines
    t: Any  # the positions of the columns
    table: DistanceTable  # shared by the attentions of all layers
    length: Any = None  # of each sequence, if it is padded
    z_length: Any = None  # of each context, if it is padded
    caches: MixerCaches = MixerCaches()  # of earlier columns; empty for whole sequences
    select: CacheSelection | None = None  # None: whole sequences are not cached
    cache_length: Any = None  # number of tokens of each sequence to cache
    slots: Any = None  # slots of the columns, if the caches have a slot for each token
    store: Callable[..., None] | None = None  # receives the new caches; see `with_caches`
    inputs: Any = None  # inputs of the layers, `[L, d, *columns]`; set by `with_inputs`
    # of the current layer; set by `each_layer`
    l: Any = 0  # its number
    run: tuple[LayerLines, ...] = ()  # the lines of all layers in its loop
    draws: int = 2  # number of its lines with dropout
    lent: Any = None  # the keys and values, or caches, that later layers read, by the number of their layer

    def embedding(self, x: Tokens | Columns, theta: Any, types: Any = None) -> Float[Array, "d_e *columns"]:
        """``W_e[:, x[t]] + W_p[:, t]`` for every token, by Algorithms 1 and 2; columns stand for ``W_e[:, x[t]]``.

        If θ has the parameters, token types are added, and a norm follows.
        """
        if jnp.issubdtype(x.dtype, jnp.floating):
            X = pad_embeddings(x, theta.W_e, self.length)
        else:
            X = shard(self.variant.embedding.tokens(zero_padding(x, self.length), theta), "tokens")
        X = self.at_positions(X, theta, types)
        if hasattr(theta, "W_in"):  # Algorithm 9, whose padding gets the first column
            X = pad_embeddings(X, theta.W_e if theta.W_in is None else theta.W_in, self.length)
        return X

    def at_positions(
        self, X: Float[Array, "d_in *columns"], theta: Any, types: Any = None
    ) -> Float[Array, "d_e *columns"]:
        """``X[:, t] + W_p[:, t]`` for every column, and the rest of the embedding: token types, norm, projection."""
        line = self.variant.embedding
        t = self.t.reshape(*(1,) * (X.ndim - 1 - self.t.ndim), *self.t.shape)
        W_p_t = line.of_positions(t, theta)
        X = X if W_p_t is None else X + W_p_t
        if getattr(theta, "W_t", None) is not None:
            types = jnp.broadcast_to(0 if types is None else types, X.shape[1:])
            X = X + token_embedding(types, theta.W_t)
        X = self.layer_norm(X, theta.embedding_norm)
        return shard(linear(theta.W_in, X, theta.b_in), "tokens") if line.factored else X

    def with_inputs(self, x: Tokens | Columns, X: Float[Array, "d_e *columns"], theta: Any) -> "Lines":
        """The same with the inputs of every layer, of tokens x and their embeddings X, if the variant has them."""
        inputs = getattr(theta, "layer_inputs", None)
        if inputs is None:
            return self
        if jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError("x: expected token IDs, since every layer embeds them, got columns; give token IDs")
        end: Any = self.variant.layer_end
        return self._replace(inputs=end.inputs(zero_padding(x, self.length), X, inputs))

    def layer_norm(self, X: Float[Array, "d *columns"], norm: Any) -> Float[Array, "d *columns"]:
        """``for t: layer_norm(X[:, t] | γ, β)``, Algorithm 6; X if θ has no norm here."""
        return X if norm is None else shard(self.variant.norm(X, norm), "tokens")

    def mh_attention(
        self, X: Float[Array, "d_e *batch l_x"], W: Any, mask: Any, context: Any = None
    ) -> Float[Array, "d_e *batch l_x"]:
        """``MHAttention(X | 𝓦, Mask)``, or ``MHAttention(X, Z | 𝓦, Mask)`` with a context Z, by the layer's mixer.

        Padding is masked, too.
        """
        is_own = context is None
        length = self.length if is_own else self.z_length
        mask = mask if length is None else mask & StructuralMask(length=length)
        caches, lends = self.caches.own if is_own else self.caches.context, self.run[0].lends
        X, W = self._normalized(X, W)
        X, Z = shard(X, None), None if is_own else shard(context, None)

        def by(line, X, Z, W, caches):
            metadata, lent = MixerMetadata(self.t, self.table, self.cache_length, self.slots), None
            if line.keys_of is not None:
                lent = self.lent[line.keys_of]
            if caches is not None:
                given = caches if lent is None else lent
                steps = self.slots is not None
                Y, new = line.steps(X, W, given, metadata, mask, Z) if steps else line.step(X, W, given, metadata, Z)
                return Y, new if lent is None else caches, None if lends is None else new
            Y, new = line.whole(X, W, mask, metadata._replace(lent=lent), Z)
            own = None if self.select is None else self.select(line, new if lent is None else None)
            return Y, own, None if lends is None else (new.K, new.V)

        with using(key=self._key(0 if is_own else 1)):
            Y, caches, lent = self.variant.by_attention(self.l, self.run, by, X, Z, W, caches)
        if self.store is not None:
            self.store(**{"own" if is_own else "context": caches, "lent": lent})
        return self._added(Y)

    def mlp(
        self, X: Float[Array, "d_e *columns"], W: Any, activation: Callable[..., Any]
    ) -> Float[Array, "d_e *columns"]:
        """``W_mlp2 f(W_mlp1 X + b_mlp1 1ᵀ) + b_mlp2 1ᵀ``, with the line's own f if it has one; 0 without MLPs."""
        line = self.run[0].mlp
        if line is None:
            return jnp.zeros_like(X)
        X, W = self._normalized(X, W)
        name: Any = line.activation or activation.__name__
        with using(key=self._key(self.draws - 1)):
            return self._added(line(shard(X, None), W, activation=name))

    def projection(
        self, X: Float[Array, "d_e *columns"], theta: Any, activation: Callable[..., Any]
    ) -> Float[Array, "d_f *columns"]:
        """``f(W_f X + b_f 1ᵀ)``, with the activation of the MLPs if their line has one; X if θ has no W_f."""
        if theta.W_f is None:
            return X
        name = getattr(self.variant.mlps[0], "activation", None) or activation.__name__
        return activate(name, linear(theta.W_f, X, theta.b_f))

    def projected(self, X: Float[Array, "d_e *columns"], theta: Any) -> Float[Array, "d_f *columns"]:
        """Lines 10 and 11 of Algorithm 9 in a decoder that has them, such as Ettin's; X if θ has no W_f."""
        return X if theta.W_f is None else self.layer_norm(self.projection(X, theta, gelu), theta.norm_f)

    def _added(self, Y):
        factor = self.variant.residual_factor
        return shard(Y if factor == 1 else Y * factor, "tokens")

    def _normalized(self, X, W):
        return (self.layer_norm(X, W.norm), W.W) if isinstance(W, NormFirst) else (X, W)

    def _key(self, i: int) -> OptionalKey:
        return fold_in(dropout_key.get(), self.draws * self.l + i)

    def each_layer(self, X: Any, layers: Layers, *reads: Any) -> Callable[[Layer], Any]:
        """``for l = 1, …, L: X ← layer(X, θ_l, f, …)``, written above the body of the loop, as in `algorithms.loops`.

        The layers of a stack are one loop; if the layers cycle through several stacks, another loop surrounds these.
        A variant with another order of the layer's lines replaces the body, see `algorithms.orders`.

        Args:
            X: the residual stream.
            layers: the layers' parameters.
            reads: further arguments of the body, such as a mask.
        """

        def run(layer):
            f = self._replace(lent={})
            through = f._one_by_one if isinstance(layers, list) else f._in_loops
            with through_layers(X) as first:
                out, caches = through(layer, first, layers, reads)
            if self.store is not None:
                self.store(**caches._asdict())
            return out

        return run

    def _layer(self, body, X, W, l, run, caches, reads):
        found: dict[str, Any] = {}
        draws, order = 3 if hasattr(W, "cross_attention") else 2, run[0].order
        f = self._replace(l=l, draws=draws, run=run, caches=caches, store=found.update)
        layer = body if order in (None, self.order, "no_norm") else in_order(order, body)
        X = layer(X, W, f, *reads)
        end = self.variant.layer_end
        if end is not None:
            X = end(X, W.end, None if self.inputs is None else self.inputs[l])
        return X, MixerCaches(**found)

    def _remembered(self, caches, lends):
        """The caches of a run, without what is remembered for later layers."""
        if lends is not None:
            self.lent[lends] = caches.lent
        return caches._replace(lent=None)

    def _one_by_one(self, body, X, layers, reads):
        found = []
        for l, W in enumerate(layers):
            caches = MixerCaches(*(None if of is None else of[l] for of in self.caches))
            line = self.variant.lines(l)
            X, new = self._layer(body, X, W, l, (line,), caches, reads)
            found.append(self._remembered(new, line.lends))
        return X, MixerCaches(*map(tuple, zip(*found, strict=True)))

    def _in_loops(self, body, X, layers, reads):
        """A loop for each run of layers and, if a cycle of runs is repeated, one around these."""
        stacks, found, (own, context, _) = stacks_of(layers), [], self.caches
        X = match_varying_axes((X, stacks, reads, self.table, self.inputs, dropout_key.get()))[0]
        nothing = (None,) * len(stacks)
        of_runs = zip(stacks, own or nothing, context or nothing, strict=True)
        for runs in self.variant.parts(count_layers(layers, self.variant)):
            times, of_cycle = runs[0].times, list(itertools.islice(of_runs, len(runs)))

            def cycle(X, numbered, runs=runs):
                p, of_cycle = numbered
                found = []
                for run, (stack, *caches) in zip(runs, of_cycle, strict=True):
                    X, new = self._run(body, X, run, run.start + p * run.step, stack, MixerCaches(*caches), reads)
                    found.append(new)
                return X, found

            if times == 1:
                X, new = cycle(X, (0, of_cycle))
            else:
                by_cycle = jax.tree.map(lambda a, n=times: a.reshape(n, len(a) // n, *a.shape[1:]), of_cycle)
                X, new = jax.lax.scan(cycle, X, (jnp.arange(times), by_cycle), unroll=static.value.unroll)
                new = jax.tree.map(of_all_heads, new)
            found += new
        return X, MixerCaches(*map(tuple, zip(*found, strict=True)))

    def _run(self, body, X, run, first, stack, caches, reads):
        """Layers with parameters of equal shapes, from number ``first`` on."""
        shared = self.variant.shared_layers

        def turn(X, of_layer):
            W, i, caches = of_layer
            if shared > 1:
                W = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i // shared, keepdims=False), stack)
            return self._layer(body, X, W, first + i, run.layers, caches, reads)

        turn = _recomputed(turn, X, alone=len(run.layers) == 1)
        xs = None if shared > 1 else stack, jnp.arange(len(run.layers)), caches
        X, new = jax.lax.scan(turn, X, xs, unroll=static.value.unroll)
        lends = run.layers[0].lends
        if lends is not None:  # such a layer has a loop of its own
            new = new._replace(lent=jax.tree.map(lambda a: a[0], new.lent))
        return X, self._remembered(new, lends)


def with_caches(lines: Callable[..., Any], f: Lines, *arguments: Any) -> tuple[Any, MixerCaches]:
    """``lines(f, *arguments)``, the lines of Algorithm 8, 9 or 10, and the caches of their layers."""
    found: dict[str, Any] = {}
    X = lines(f._replace(store=found.update), *arguments)
    return X, MixerCaches(**found)


class Own(NamedTuple):
    """An algorithm's defaults, where the variant leaves them open."""

    orders: tuple[str, ...]  # supported orders, the default first
    both_ways: bool = False  # whether tokens also attend to later ones
    distances: str = "distances"  # the field of θ with its scores by distance


OWN = {
    "encoder of Algorithm 8": Own(("norm_last", "norm_first", "no_norm"), True, "encoder_distances"),
    "decoder of Algorithm 8": Own(("norm_last", "norm_first", "no_norm"), False, "decoder_distances"),
    "Algorithm 9": Own(("norm_last", "norm_first", "no_norm"), True),
    "Algorithm 10": Own(("norm_first", "norm_last", "side_by_side", "one_norm", "no_norm")),
}


def lines_of(algorithm: str, x: Tokens | Columns, theta: Any, *, positions: Any = None, **fields: Any) -> Lines:
    """The lines of θ's variant for a sequence x, tokens or columns of embeddings, with its positions.

    ``algorithm`` is one of `OWN`, ``positions`` are those of the columns (None: 0 … l − 1), and the rest are fields of
    `Lines`. Raises ValueError if the algorithm has no layers in the variant's order.
    """
    own, variant = OWN[algorithm], theta.variant
    for order in variant.orders:
        if order is not None and order not in own.orders:
            orders = ", ".join(map(repr, own.orders))
            raise ValueError(f"variant.order: expected None or one of {orders} here, got {order!r}")
    x = x[0] if jnp.issubdtype(x.dtype, jnp.floating) else x
    t = positions_in(x) if positions is None else positions.astype(int)
    return Lines(variant, own.orders[0], t, DistanceTable(getattr(theta, own.distances), own.both_ways), **fields)


def _recomputed(turn: Callable[..., Any], X: Any, *, alone: bool) -> Callable[..., Any]:
    """A layer with rematerialization, as the option ``remat`` selects it.

    In a loop on a GPU, norms and activations are always recomputed: storing them would move more bytes. No product is
    computed twice for that. Outside of a loop, or ``alone`` in one, XLA would merge the recomputation.
    """
    remat, unroll = static.value.remat, static.value.unroll
    if not remat and (unroll or platform_of(X) not in ("gpu", "cuda")):
        return turn
    names = {True: (), "all but attention": ATTENTION_RESIDUALS}.get(remat, (*ATTENTION_RESIDUALS, PRODUCT))
    by_name = jax.checkpoint_policies.save_only_these_names(*names)
    by_primitive = () if remat is True else (CUDNN_FORWARD, *(() if remat else PRODUCTS))

    def policy(primitive, *arrays, **options):
        return by_name(primitive, *arrays, **options) or primitive.name in by_primitive

    return jax.checkpoint(turn, prevent_cse=unroll or alone, policy=policy)


def zero_padding(
    x: Integer[Array, "*batch l"], length: Integer[Array, "*#batch"] | int | None
) -> Integer[Array, "*batch l"]:
    """The sequence with token 0 in place of the padding, t >= length."""
    if length is None:
        return x
    length = jnp.asarray(length)
    length = length.reshape(*length.shape, *(1,) * (x.ndim - length.ndim))
    return jnp.where(positions_in(x) < length, x, 0)


def pad_embeddings(
    X: Float[Array, "d_e *batch l"], W: Float[Array, "d_e _"] | Any, length: Integer[Array, "*#batch"] | int | None
) -> Float[Array, "d_e *batch l"]:
    """Embeddings with the first column of W (W_e or W_in) where t >= length: with ε = 0, columns of 0 have no norm."""
    if length is None:
        return X
    real = zero_padding(jnp.ones(X.shape[1:], int), length) > 0
    return jnp.where(real[None], X, W[:, 0].reshape(-1, *(1,) * real.ndim).astype(X.dtype))


def positions_in(x: Shaped[Array, "*batch l"]) -> Any:
    """0 … l − 1, with as many axes as x: in NumPy, unless l is symbolic, as in ``jax.export``."""
    return indices(x.shape[-1]).reshape(*(1,) * (x.ndim - 1), x.shape[-1])
