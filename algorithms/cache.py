"""The KV cache of Algorithms 8 and 10 as a value, and reading tokens into it, a few at a time."""

import functools
from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Integer

from algorithms.alg08_ed_transformer import ed_decoder_lines
from algorithms.alg10_d_transformer import d_lines
from algorithms.layers import MixerCaches, lines_of, positions_in, with_caches
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import compiled, plain, relation
from algorithms.machinery.record import Range
from algorithms.masks import BIDIRECTIONAL, UNIDIRECTIONAL, StructuralMask
from algorithms.model.attention import Attention, ContextKeys
from algorithms.model.columnwise import check_columns
from algorithms.model.initialization import init_d_transformer
from algorithms.model.sizes import DTransformerConfig
from algorithms.model.theta import (
    DTransformerParams,
    EDTransformerParams,
    count_layers,
    of_each_layer,
    places,
    stacks_of,
)
from algorithms.notation import Choice, ContextLength, Count


class Cache(NamedTuple):
    """The caches of all layers, made by `empty_cache` and filled by `read_tokens`.

    All arrays of ``stacks`` are ``[layers, …, *batch, l_max]``, with a slot for each token. With one batch axis, the
    sequences are axis −2: ``jax.tree.map(lambda a: a[..., rows, :], cache.stacks)`` selects some of them, as a beam
    search does, and ``a.at[..., slots].set(a[..., others])`` moves the tokens of an accepted branch together.
    """

    stacks: tuple[Any, ...]  # of the layers of each stack of θ
    context: tuple[Any, ...] = ()  # likewise, keys and values of Algorithm 8's context, [layers, H_kv, d, *batch, l_z]
    z_length: Any = None  # of each context

    def __shapes__(self) -> None:
        """They depend on θ, too."""


def empty_cache(
    config: DTransformerConfig,
    batch: int | tuple[int, ...] = (),
    *,
    l_max: int | None = None,
    dtype: DTypeLike | None = None,
) -> Cache:
    """The cache of sequences before anything is read, with room for l_max tokens of each (None: the configuration's).

    It stores the keys and values of every token, also outside of a sliding window, and the states of custom mixers
    after every token. A dtype as wide as that of θ, such as JAX's default (None), changes no value.

    Example:
        >>> config = DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
        >>> [a.shape for a in jax.tree.leaves(empty_cache(config, 7))]  # [L, H_kv, d, batch, l_max]
        [(1, 2, 3, 7, 4), (1, 2, 3, 7, 4)]
    """
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    theta = jax.eval_shape(lambda key: init_d_transformer(key, config, dtype=dtype), jax.random.key(0))
    batch = (batch,) if isinstance(batch, int) else tuple(batch)
    slots = _cache_shapes(theta, batch, config.l_max if l_max is None else l_max, dtype)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), slots)


@compiled
def context_cache(
    Z: Float[AnyArray, "d_e *batch l_z"],
    theta: EDTransformerParams,
    *,
    l_max: Count,
    z_length: ContextLength = None,
    **options: Unpack[Choice],
) -> Cache:
    """The cache of Algorithm 8 before x is read: room for l_max of its tokens, and the keys and values of a context.

    The context Z is what `ed_encoding` returns.
    """
    batch, found = Z.shape[1:-1], {}
    slots = _cache_shapes(theta, batch, l_max, theta.W_e.dtype)
    stacks = [theta.variant.of_every_layer(stack) for stack in stacks_of(theta.decoder)]
    for l, (stack, row) in enumerate(places(theta.variant, count_layers(theta.decoder, theta.variant))):
        of_layer = jax.tree.map(lambda a, row=row: a[row], stacks[stack].cross_attention)
        found.setdefault(stack, []).append(theta.variant.attention_of(l).context(Z, of_layer))
    context = [ContextKeys(*map(jnp.stack, zip(*found[i], strict=True))) for i in range(len(found))]
    length = jnp.full(batch, Z.shape[-1]) if z_length is None else jnp.broadcast_to(z_length, batch)
    empty = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), slots)
    return empty._replace(context=tuple(context), z_length=length.astype(jnp.int32))


@compiled
def read_tokens(
    theta: DTransformerParams | EDTransformerParams,
    cache: Cache,
    x: Integer[AnyArray, "*batch m"] | Float[AnyArray, "d_in *batch m"],
    n: Annotated[Integer[AnyArray, "*#batch"] | int, Range("a number of tokens >= 0", lambda n: n >= 0)],
    *,
    mask: StructuralMask | Bool[AnyArray, "*#batch m m"] = UNIDIRECTIONAL,
    positions: Integer[AnyArray, "*#batch m"] | None = None,
    **options: Unpack[Choice],
) -> tuple[Float[Array, "N_V *batch m"], Cache]:
    """Read m more tokens x of each sequence behind its first n: their columns of `d_logits`, and the cache with them.

    The tokens before are those that were read into the slots 0 … n − 1; a smaller n goes back, and later slots do not
    matter. It is pure: `jax.jit`, `jax.vmap`, `jax.grad` and `jax.lax.scan` transform it. A column beyond
    the room of the cache is NaN. A mixer other than attention computes the columns one after another.

    The tokens see those before and, by ``mask``, each other, so that a tree of drafts is verified in one pass: its mask
    has each token's ancestors, its ``positions`` are n and the depth in the tree. With Algorithm 8, where the cache is
    `context_cache`'s, the columns are those of `ed_logits`.

    Example:
        >>> config = DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_d_transformer(jax.random.key(0), config)
        >>> logits, cache = read_tokens(theta, empty_cache(config), jnp.array([3, 0]), 0)
        >>> logits, cache = read_tokens(theta, cache, jnp.array([1, 4]), 2)
        >>> bool(jnp.allclose(logits, d_logits(jnp.array([3, 0, 1, 4]), theta)[:, 2:], atol=1e-6))
        True
    """
    is_embedded = jnp.issubdtype(x.dtype, jnp.floating)
    batch, C = x.shape[is_embedded:-1], jax.tree.leaves(cache)[0].shape[-1]
    n = jnp.broadcast_to(jnp.asarray(n, jnp.int32), batch)
    slots = jnp.where(n < 0, C, n)[..., None] + positions_in(x[0] if is_embedded else x).astype(jnp.int32)
    if isinstance(mask, StructuralMask) and not (positions is None and _is_unidirectional(mask)):
        mask = mask.dense(x.shape[-1], x.shape[-1])
    t = slots if positions is None else jnp.broadcast_to(positions, slots.shape)
    where: Any = {"positions": t, "caches": MixerCaches(cache.stacks, cache.context), "slots": slots}
    if isinstance(theta, DTransformerParams):
        f = lines_of("Algorithm 10", x, theta, **where)
        X, caches = with_caches(d_lines, f, x, theta, mask)
    else:
        f = lines_of("decoder of Algorithm 8", x, theta, z_length=cache.z_length, **where)
        Z = jnp.zeros((len(theta.W_e), 0), theta.W_e.dtype)  # the cache has its keys and values
        X, caches = with_caches(ed_decoder_lines, f, Z, x, theta, mask, BIDIRECTIONAL)
    logits = theta.variant.unembedding.logits(X, theta)
    return jnp.where((slots < C)[None], logits, jnp.nan), cache._replace(stacks=caches.own)


@relation("read_tokens")
def a_cache_fits_theta_and_tokens(theta: Any, cache: Any, x: Any) -> None:
    """Its arrays have the shapes, and at least the precision, that θ and these sequences need."""
    is_decoder = isinstance(theta, DTransformerParams)
    check_columns(theta, theta.layers if is_decoder else theta.decoder)
    if x.shape[-1] == 0:
        raise ValueError(f"x: expected at least one token of each sequence, got {x.dtype}{list(x.shape)}")
    batch = x.shape[jnp.issubdtype(x.dtype, jnp.floating) : -1]
    leaves, tree = jax.tree.flatten(cache)
    C = leaves[0].shape[-1] if leaves else 0
    if is_decoder:
        expected, maker = _cache_shapes(theta, batch, C, theta.W_e.dtype), f"empty_cache(config, {tuple(batch)})"
    else:
        Z = jax.ShapeDtypeStruct(
            (len(theta.W_e), *batch, cache.context[0].K.shape[-1] if cache.context else 1), theta.W_e.dtype
        )
        expected = jax.eval_shape(functools.partial(plain(context_cache), l_max=C), Z, theta)
        maker = "context_cache(Z, theta, l_max=…)"
    shapes, those = ([list(a.shape) for a in jax.tree.leaves(of)] for of in (expected, cache))
    if jax.tree.structure(expected) != tree or shapes != those:
        raise ValueError(
            f"cache: expected arrays {shapes} for theta and sequences {list(batch)}, got {those}; make it by {maker}"
        )
    for needed, array in zip(jax.tree.leaves(expected), leaves, strict=True):
        if jnp.promote_types(needed.dtype, array.dtype) != array.dtype:
            raise ValueError(
                f"cache: expected {needed.dtype}, as theta, or a wider type, got {array.dtype}; make it by "
                f'empty_cache(config, batch, dtype="{needed.dtype}")'
            )


@relation("read_tokens")
def a_tree_of_tokens_has_masks_and_positions(theta: Any, mask: Any, positions: Any) -> None:
    """A recurrence reads tokens in order, and scores by distance count slots."""
    lines = theta.variant.attentions
    other = next((line for line in lines if not isinstance(line, Attention)), None)
    if other is not None and not (isinstance(mask, StructuralMask) and _is_unidirectional(mask)):
        raise ValueError(
            f"mask: expected UNIDIRECTIONAL, since {type(other).__name__} reads tokens in their order, got another; "
            "leave it out"
        )
    if positions is not None and any(line.positions is not None and line.positions.by_distance for line in lines):
        raise ValueError(
            "positions: expected None, since the variant's scores depend on the distance of slots, got an array; read "
            "each branch by itself"
        )


def _is_unidirectional(mask: StructuralMask) -> bool:
    return mask.unidirectional and mask.width is None and not jax.tree.leaves(mask)


def _cache_shapes(theta: Any, batch: tuple[int, ...], C: int, dtype: Any) -> Cache:
    own = theta.layers if isinstance(theta, DTransformerParams) else theta.decoder
    layers, stacks = of_each_layer(own, theta.variant), {}
    for l, (stack, _) in enumerate(places(theta.variant, count_layers(own, theta.variant))):
        line = theta.variant.attention_of(l)
        slots = line.cache_shapes(layers[l][0], len(theta.W_e), dtype, batch, C)
        stacks.setdefault(stack, []).append((line, slots))
    for lines in stacks.values():
        kinds = {str(slots): type(line).__name__ for line, slots in lines}
        if len(kinds) > 1:
            raise ValueError(
                "variant.attention: expected lines that keep arrays of equal shapes, since the layers of a stack have "
                f"one cache, got {' and '.join(kinds.values())}; use d_logits, which keeps none"
            )

    def stacked(lines):
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((len(lines), *a.shape), a.dtype), lines[0][1])

    return Cache(tuple(stacked(stacks[i]) for i in range(len(stacks))))
