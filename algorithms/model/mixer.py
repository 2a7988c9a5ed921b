"""Mixers: line 6 of Algorithm 10, which mixes the columns of a sequence, by attention or by a recurrence."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Shaped

from algorithms.masks import Mask
from algorithms.model.line import Line
from algorithms.model.positions import DistanceTable


class MixerMetadata(NamedTuple):
    """Arguments of a mixer besides columns, parameters, a mask and a context."""

    t: Any  # positions of the columns
    table: DistanceTable = DistanceTable()  # shared by the mixers of all layers
    cache_length: Any = None  # number of tokens of each sequence to cache; None: all
    slots: Any = None  # slots of the columns, if the cache has a slot for each token
    lent: Any = None  # keys and values of the earlier layer whose own the mixer reads, unless a cache has them

    def length_of(self, x: Shaped[Array, "B l"]) -> Integer[Array, "B"]:
        """The number of tokens of each of these sequences to cache."""
        return jnp.broadcast_to(x.shape[1] if self.cache_length is None else self.cache_length, x.shape[:1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixer(Line, abstract=True):
    """The line of a layer that mixes columns, in two equivalent forms.

    ``whole`` computes whole sequences, ``step`` the next column of each from a cache or recurrent state: any pytree of
    arrays with sequences on the last axis, which ``begin`` initializes. A custom mixer overrides ``shapes``, ``whole``
    and, for cached generation, ``step`` and ``begin``.
    """

    positions: ClassVar[Any] = None
    """How it encodes positions; None: by the order of tokens alone."""

    window: ClassVar[int | None] = None
    """Width of the sliding window, the token itself included; None: all tokens."""

    keys_of: ClassVar[int | None] = None
    """The number of the layer whose keys and values it reads; None: it has its own."""

    reads_context: ClassVar[bool] = False
    """Whether it supports cross-attention, line 16 of Algorithm 8."""

    def whole(
        self, X: Float[Array, "d_e *batch l_x"], W: Any, mask: Mask, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l_x"], Any]:
        """The output for whole sequences, and the cache after the first ``metadata.cache_length`` tokens of each.

        With a context ``[d_e, *batch, l_z]``, cross-attention. Outputs after ``metadata.cache_length`` are not used.
        """
        self._lacks("whole", "to compute sequences")

    def step(
        self, x: Float[Array, "d_e *batch"], W: Any, cache: Any, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch"], Any]:
        """The output for the next column of each sequence, and the updated cache."""
        self._lacks("step", "for cached generation")

    def begin(self, W: Any, B: int) -> Any:
        """The cache before the first column of B sequences."""
        self._lacks("begin", "for cached generation")

    def parts(self, W: Any = None) -> tuple[tuple["Mixer", Any], ...]:
        """The mixers that it adds up, each with its part of the parameters; by itself one."""
        return ((self, W),)

    def context(self, Z: Float[Array, "d_e *batch l_z"], W: Any) -> tuple[Array, Array]:
        """The keys and values of a context."""
        self._lacks("context", "for cached cross-attention")

    def _lacks(self, method: str, purpose: str) -> NoReturn:
        kind = type(self).__name__
        raise NotImplementedError(f"{kind}.{method}: expected a method of its own, got none; define it {purpose}")

    def cache_shapes(self, W: Any, d_e: int, dtype: Any, batch: tuple[int, ...], C: int) -> Any:
        """The shapes ``[…, *batch, C]`` of a cache with C slots, from those of the parameters."""
        cache = jax.eval_shape(lambda W: self.begin(W, math.prod(batch)), W)
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((*a.shape[:-1], *batch, C), a.dtype), cache)

    def steps(
        self,
        X: Float[Array, "d_e *batch m"],
        W: Any,
        cache: Any,
        metadata: MixerMetadata,
        mask: Mask,
        context: Any = None,
    ) -> tuple[Float[Array, "d_e *batch m"], Any]:
        """Outputs for columns in the slots ``metadata.slots``, one after another, and the updated cache.

        A slot stores the state after its column, so a sequence can continue after any slot.
        """
        (d_e, *batch, m), slots = X.shape, metadata.slots
        B = math.prod(batch)

        @functools.partial(jax.vmap, in_axes=(-2, -1, 0), out_axes=-1)
        def before(of_slots, first, slot):
            return jnp.where(slot > 0, of_slots[..., jnp.maximum(slot - 1, 0)].astype(first.dtype), first)

        def turn(of_column, x_t):
            y, of_column = self.step(x_t[0], W, of_column, metadata._replace(t=x_t[1]))
            return of_column, (y, of_column)

        flat = jax.tree.map(lambda a: a.reshape(*a.shape[: a.ndim - len(batch) - 1], B, a.shape[-1]), cache)
        columns = jnp.moveaxis(X.reshape(d_e, B, m), -1, 0), metadata.t.reshape(B, m).T
        first = slots.reshape(B, m)[:, 0]
        begun = jax.tree.map(lambda a, begun: before(a, begun, first), flat, self.begin(W, B))
        _, (Y, after) = jax.lax.scan(turn, begun, columns)
        after = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1).reshape(*a.shape[1:-1], *batch, m), after)
        return jnp.moveaxis(Y, 0, -1).reshape(X.shape), jax.tree.map(lambda a, new: stored(a, new, slots), cache, after)


def stored(
    cache: Shaped[Array, "*rows C"], columns: Shaped[Array, "*rows m"], slots: Integer[Array, "*batch m"]
) -> Shaped[Array, "*rows C"]:
    """A cache ``[…, *batch, C]`` with columns ``[…, *batch, m]`` written to these slots; those beyond C are dropped."""
    first = cache.ndim - slots.ndim

    def store(cache, columns, slots):
        return cache.at[..., slots].set(columns.astype(cache.dtype), mode="drop")

    for _ in range(slots.ndim - 1):
        store = jax.vmap(store, (first, first, 0), first)
    return store(cache, columns, slots)
