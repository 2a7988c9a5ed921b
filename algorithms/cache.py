"""A cache that is a value: what the layers of Algorithm 10 keep of the tokens that were read, a few at a time."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from algorithms.alg10_d_transformer import d_lines
from algorithms.layers import Kept, keeping, lines_of, positions_in
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import compiled, relation
from algorithms.machinery.record import Range
from algorithms.masks import UNIDIRECTIONAL
from algorithms.model.columnwise import check_columns
from algorithms.model.initialization import init_d_transformer
from algorithms.model.sizes import DTransformerConfig
from algorithms.model.theta import DTransformerParams, count_layers, of_each_layer, places
from algorithms.notation import Implementation


class Cache(NamedTuple):
    """What the layers have kept of the first tokens of sequences, as `empty_cache` makes it and `read_tokens` fills it.

    All arrays are ``[layers, …, *batch, l_max]``: they have a slot for each position.
    """

    stacks: tuple[Any, ...]  # of the layers of each stack of θ

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

    It has the keys and values of every token, also where a window hides them, and what mixers of one's own keep after
    every token. A dtype as wide as that of θ, such as JAX's default (None), changes no value.

    Example:
        >>> config = DTransformerConfig(N_V=5, l_max=4, L=1, H=2, d_e=6, d_mlp=8)
        >>> [a.shape for a in jax.tree.leaves(empty_cache(config, 7))]  # [L, H_kv, d, batch, l_max]
        [(1, 2, 3, 7, 4), (1, 2, 3, 7, 4)]
    """
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    theta = jax.eval_shape(lambda key: init_d_transformer(key, config, dtype=dtype), jax.random.key(0))
    batch = (batch,) if isinstance(batch, int) else tuple(batch)
    slots = _slots(theta, batch, config.l_max if l_max is None else l_max, dtype)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), slots)


@compiled
def read_tokens(
    theta: DTransformerParams,
    cache: Cache,
    x: Integer[AnyArray, "*batch m"] | Float[AnyArray, "d_in *batch m"],
    n: Annotated[Integer[AnyArray, "*#batch"] | int, Range("a number of tokens >= 0", lambda n: n >= 0)],
    *,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "N_V *batch m"], Cache]:
    """Read m more tokens x of each sequence behind its first n: their columns of `d_logits`, and the cache with them.

    The tokens before are those that were read into the slots 0 … n − 1; a smaller n goes back, and later slots do not
    matter. It is pure: `jax.jit`, `jax.vmap`, `jax.grad` and `jax.lax.scan` transform it. A column beyond
    the room of the cache is NaN. A layer that is no attention computes the columns one after another.

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
    t = jnp.where(n < 0, C, n)[..., None] + positions_in(x[0] if is_embedded else x).astype(jnp.int32)
    f = lines_of("Algorithm 10", x, theta, implementation, positions=t, kept=Kept(own=cache.stacks), slots=True)
    X, kept = keeping(d_lines, f, x, theta, UNIDIRECTIONAL)
    logits = theta.variant.unembedding.logits(X, theta)
    return jnp.where((t < C)[None], logits, jnp.nan), Cache(kept.own)


@relation("read_tokens")
def a_cache_has_what_layers_keep(theta: Any, cache: Any, x: Any) -> None:
    """For these sequences and this θ."""
    check_columns(theta, theta.layers)
    if x.shape[-1] == 0:
        raise ValueError(f"x: expected at least one token of each sequence, got {x.dtype}{list(x.shape)}")
    batch = x.shape[jnp.issubdtype(x.dtype, jnp.floating) : -1]
    leaves, tree = jax.tree.flatten(cache)
    C = leaves[0].shape[-1] if leaves else 0
    expected = _slots(theta, batch, C, theta.W_e.dtype)
    shapes, those = ([list(a.shape) for a in jax.tree.leaves(of)] for of in (expected, cache))
    if jax.tree.structure(expected) != tree or shapes != those:
        raise ValueError(
            f"cache: expected arrays {shapes} for theta and sequences {list(batch)}, got {those}; make it by "
            f"empty_cache(config, {tuple(batch)})"
        )
    for needed, array in zip(jax.tree.leaves(expected), leaves, strict=True):
        if jnp.promote_types(needed.dtype, array.dtype) != array.dtype:
            raise ValueError(
                f"cache: expected {needed.dtype}, as theta, or a wider type, got {array.dtype}; make it by "
                f'empty_cache(config, batch, dtype="{needed.dtype}")'
            )


def _slots(theta: Any, batch: tuple[int, ...], C: int, dtype: Any) -> Cache:
    """The shapes of what all layers keep of C tokens."""
    layers, stacks = of_each_layer(theta.layers, theta.variant), {}
    for l, (stack, _) in enumerate(places(theta.variant, count_layers(theta.layers, theta.variant))):
        line = theta.variant.attention_of(l)
        slots = line.slots(layers[l].attention, len(theta.W_e), dtype, batch, C)
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
