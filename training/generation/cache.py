"""The cache of keys and values, with which a new token costs one column instead of a forward pass.

A cache is ``[H*B, R, d]``: for each head of each sequence, one row per token, contiguous. In this layout a compiled
loop writes a row in place (XLA copies the whole cache if the batch has an axis of its own), and the product with a
query reads the cache once, at memory speed. The token in slot s is in row s mod R. If every layer has a window, R is at
most the widest one, however long the text is. Otherwise R is the number C of slots, which grows in buckets: a program
compiled for a bucket serves all lengths in it. On CPUs, such a cache is in parts, see `slots.Slots`.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.devices import devices_sharing, platform_of
from algorithms.model.parallel import Both
from algorithms.ops.activation import capped
from training.generation.layout import Weights, sizes_of_layers
from training.generation.slots import CacheQueries, Slots, smallest_part

EQUAL_ROWS = 8  # how often a query is repeated on a TPU, where a product with eight rows is much faster than with one


def held(slot: Any, R: int) -> Int[Array, "R"]:
    """Return the slot that each row of a cache holds once all slots before `slot` are written."""
    return slot - 1 - (slot - 1 - jnp.arange(R)) % R


@functools.partial(jax.tree_util.register_dataclass, data_fields=("K", "V"), meta_fields=("limit",))
@dataclasses.dataclass(frozen=True)
class KeyValues:
    """The keys and values that one attention reads, of all heads and sequences, head by head."""

    K: Float[Array, "HB R d_attn"]
    V: Float[Array, "HB R d_mid"]
    limit: int | None = None  # of how many tokens, the last, they are kept; None: of all

    @staticmethod
    def of(K: Float[Array, "H d_attn B l"], V: Float[Array, "H d_mid B l"], limit: int | None = None) -> "KeyValues":
        """Return the keys and values of whole sequences, one row per token."""

        def rows(columns):
            H, d, B, l = columns.shape
            return columns.transpose(0, 2, 3, 1).reshape(H * B, l, d)

        return KeyValues(rows(K), rows(V), limit)

    def stored(self, K: Float[Array, "H d_attn B"], V: Float[Array, "H d_mid B"], slot: Int[Array, ""]) -> "KeyValues":
        """Return the cache with the key and value of one more token of each sequence, in this slot."""

        def store(cache, column):
            rows = column.transpose(0, 2, 1).reshape(len(cache), 1, column.shape[1])
            return jax.lax.dynamic_update_slice_in_dim(cache, rows, slot % cache.shape[1], axis=1)

        return KeyValues(store(self.K, K), store(self.V, V), self.limit)

    def resized(self, R: int) -> "KeyValues":
        """Return the cache with R rows: cut at the end, or with new ones of 0."""
        none, end = (0, 0, 0), (0, R - self.K.shape[1], 0)
        return jax.tree.map(lambda cache: jax.lax.pad(cache, jnp.zeros((), cache.dtype), (none, end, none)), self)

    def taken(self, rows: Int[Array, "R"]) -> "KeyValues":
        """Return the cache with the given rows of every sequence."""
        return jax.tree.map(lambda cache: jnp.take(cache, rows, axis=1), self)

    def arranged(self, rows: Int[Array, "B R"]) -> "KeyValues":
        """Return the cache with the given rows of each of B sequences; a negative index gives an arbitrary row."""

        def arrange(cache):
            B, R = rows.shape
            of_heads = cache.reshape(len(cache) // B, B, *cache.shape[1:])
            chosen = jnp.clip(rows, 0, cache.shape[1] - 1)[None, :, :, None]
            return jnp.take_along_axis(of_heads, chosen, axis=2).reshape(len(cache), R, cache.shape[2])

        return jax.tree.map(arrange, self)

    def attend(self, given: CacheQueries) -> Float[Array, "HB g d_mid"]:
        """See `Slots.attend`; for all rows: `permitted` says which of them are within the window before the slot."""
        queries, permitted, cap, of_distances, _, _, sinks = given
        (HB, g, d_attn), (K, V) = queries.shape, values_too(self)
        equal = EQUAL_ROWS if platform_of(queries) == "tpu" and g == 1 else g
        queries = jnp.broadcast_to(queries, (HB, equal, d_attn))
        S = jnp.einsum("rcd,rqd->rqc", K, queries, preferred_element_type=accumulation_dtype(queries.dtype))
        if of_distances is not None:
            S = S + of_distances()
        S = capped(S, cap, d_attn)
        of_sequences = S.reshape(-1, len(permitted), equal, S.shape[2]) / jnp.sqrt(d_attn).astype(S.dtype)
        S = jnp.where(permitted[None, :, None], of_sequences, jnp.finfo(S.dtype).min).reshape(S.shape)
        if sinks is not None:
            S = jnp.concatenate([S, jnp.broadcast_to(sinks.astype(S.dtype), (HB, equal, 1))], axis=2)
        A = jax.nn.softmax(S)[:, :, : K.shape[1]].astype(V.dtype)  # in XLA's pattern for one kernel on a GPU
        Y = jnp.einsum("rqc,rcd->rqd", A, V)[:, :g]
        is_any = jnp.broadcast_to(permitted.any(axis=1), (HB // len(permitted), len(permitted)))
        return jnp.where(is_any.reshape(HB, 1, 1), Y, 0)


class RecurrentState(NamedTuple):
    """The state of a mixer other than attention: arrays whose last axis has the sequences."""

    state: Any  # () of an attention that reads another layer's keys and values

    def resized(self, R: int) -> "RecurrentState":
        """Return the same, since it has no rows."""
        return self


Rows = KeyValues | Slots
"""The cache of one attention, as a step reads and writes it."""

Cache = Rows | RecurrentState | Both
"""The cache of one layer, as a step reads and writes it: `Both` of two mixers side by side."""


def joined(caches: Iterable[Any]) -> Any:
    """Return the cache of a layer from those of its mixers: the one, or both."""
    each = tuple(caches)
    return each[0] if len(each) == 1 else Both(*each)


def rows_of_parts(theta: Weights, B: int) -> int | None:
    """Return the rows of the smallest part of a cache for B sequences; None off the CPU and on several devices."""
    W_e = jax.tree.leaves(theta.W_e)[0]
    if platform_of(W_e) != "cpu" or devices_sharing(W_e) != 1 or (sizes := sizes_of_layers(theta)) is None:
        return None
    return smallest_part(B, len(theta.W_e), *sizes[:2])


def with_room(cache: Cache, C: int, n: int | None) -> Cache:
    """Return a cache with room for C slots, or up to its limit; in parts if that is all and n is given."""
    if isinstance(cache, RecurrentState):
        return cache
    if isinstance(cache, Both):
        return Both(*(with_room(part, C, n) for part in cache))
    R = min(C, cache.limit or C)
    if isinstance(cache, Slots):
        return cache.grown(R) if C == R else whole(cache).resized(R)
    cache = cache.resized(R)
    return Slots.of(cache.K, cache.V, n, cache.limit) if C == R and n is not None else cache


def whole(cache: Rows) -> KeyValues:
    """Return a cache in one part."""
    return KeyValues(*cache.rows(), cache.limit) if isinstance(cache, Slots) else cache


def rows_of(cache: Rows) -> int:
    """Return the number of rows of a cache."""
    return cache.starts[-1] if isinstance(cache, Slots) else cache.K.shape[1]


def side_by_side(cache: Cache, other: Any, B: int) -> Cache:
    """Return a cache of B sequences, followed by the sequences of another."""

    def both(cache, of_others):
        H = len(cache) // B
        parts = [a.reshape(H, len(a) // H, *a.shape[1:]) for a in (cache, of_others)]
        return jnp.concatenate(parts, axis=1).reshape(len(cache) + len(of_others), *cache.shape[1:])

    if isinstance(cache, Both):
        return Both(*(side_by_side(a, b, B) for a, b in zip(cache, other, strict=True)))
    if isinstance(cache, RecurrentState):
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-1), cache, other)
    return jax.tree.map(both, cache, other)


def chosen_sequences(cache: Cache, chosen: Int[Array, "n"], B: int) -> Cache:
    """Return the cache of the chosen sequences among B, in that order."""

    def choose(cache):
        H = len(cache) // B
        return cache.reshape(H, B, *cache.shape[1:])[:, chosen].reshape(H * len(chosen), *cache.shape[1:])

    if isinstance(cache, Both):
        return Both(*(chosen_sequences(part, chosen, B) for part in cache))
    if isinstance(cache, RecurrentState):
        return jax.tree.map(lambda a: a[..., chosen], cache)
    return jax.tree.map(choose, cache)


def values_too(cache: KeyValues) -> tuple[Float[Array, "HB R d_attn"], Float[Array, "HB R d_mid"]]:
    """Return the keys and values of a cache, whose keys serve as values if it has none."""
    return cache.K, cache.V if cache.V.shape[2] else cache.K
