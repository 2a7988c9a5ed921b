"""Attention of one more token, to the rows of a cache."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms.lines import Attention
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.naming import beside, shows
from algorithms.model.attention import QKV, Memory
from algorithms.ops.attention.dispatch import LazyScores
from training.generation.cache import Rows, held, rows_of, values_too, whole
from training.generation.projections import read_of_a_column
from training.generation.slots import CacheQueries


def attend_cached(
    Q: Float[Array, "H d_attn B"],
    cache: Rows,
    permitted: Bool[Array, "B R"],
    cap: float | None = None,
    of_distances: Callable[..., Float[Array, "H B n"]] | None = None,
    slot: Int[Array, ""] | None = None,
    window: int | None = None,
    sinks: Float[Array, "H"] | None = None,
) -> Float[Array, "H*d_mid B"]:
    """Lines 4 to the end of Algorithm 4 for one query of each head of each sequence, and line 3 of Algorithm 5: 0 if it
    has nothing to attend to. Fewer heads of the cache serve several consecutive ones each. ``of_distances(start, n)``
    is added to the scores of n rows from `start` on (without arguments: all). Of a cache in parts, only those within
    the `window` before the `slot` of the queries' tokens are read. Sinks have no value.
    """
    _, d_attn, B = Q.shape
    H_kv = jax.tree.leaves(cache)[0].shape[0] // B
    queries = Q.reshape(H_kv, -1, d_attn, B).transpose(0, 3, 1, 2).reshape(H_kv * B, -1, d_attn)
    g = queries.shape[1]

    def added(*rows: int) -> Array:
        assert of_distances is not None
        return of_distances(*rows).reshape(H_kv, g, B, -1).swapaxes(1, 2).reshape(H_kv * B, g, -1)

    if sinks is not None:
        sinks = jnp.repeat(sinks.reshape(H_kv, g, 1), B, axis=0)
    of_rows = None if of_distances is None else added
    Y = cache.attend(CacheQueries(queries, permitted, cap, of_rows, slot, window, sinks))
    return Y.reshape(H_kv, B, g, -1).transpose(0, 2, 3, 1).reshape(-1, B)


def keys_of_distances(line: Attention, W: Any, d_e: int, dtype: Any, table: Any, R: int) -> Any:
    """Return the keys of the distances from 1 − R to 0, ``[H, d_r, R]``; None if no scores use distances."""
    if not isinstance(line, Attention):
        return None
    by_distance = line.positions is not None and line.positions.by_distance
    if not by_distance and type(line).read is Attention.read:
        return None
    read = read_of_a_column(line, W, d_e, dtype, table)
    return None if read.P is None else read.P(np.arange(1 - R, 1))


def of_rows(
    cache: Rows, permitted: Any, window: int | None, of_distances: Any, slot: Any, s: LazyScores
) -> Float[Array, "H d_mid B"]:
    """`attend_cached`, with S and A for an observer; by the lines as printed if the softmax is replaced."""
    H, _, B = s.Q.shape

    def printed():
        K, V = (by_sequences(a, B) for a in values_too(whole(cache)))
        D, seen, R = None if of_distances is None else of_distances(), permitted, K.shape[3]
        if slot is not None:  # the oldest token first, as in a whole sequence
            turned = jnp.where(slot < R, 0, -(slot + 1) % R)
            K, V, seen = jnp.roll(K, turned, 3), jnp.roll(V, turned, 3), jnp.roll(seen, turned, 1)
            D = None if D is None else jnp.roll(D, turned, 2)
        return dataclasses.replace(s, K=K, mask=seen, added=D).array(V)

    sinks = None if s.weights is None else s.weights.sinks
    if shows("printed") or (s.weights is not None and sinks is None):
        return printed()
    Y = attend_cached(s.divided_by_root().Q, cache, permitted, s.cap, of_distances, slot, window, sinks)
    return beside(Y.reshape(H, -1, B), printed)


def by_sequences(rows: Float[Array, "HB R d"], B: int) -> Float[Array, "H d B R"]:
    """Return the rows of a cache of B sequences as columns."""
    return rows.reshape(-1, B, *rows.shape[1:]).transpose(0, 3, 1, 2)


class CachedAttention(NamedTuple):
    """Cached keys and values of one attention for one more token of each of B sequences."""

    cache: Rows
    P: Any  # the keys of distances, or None
    t: Int[Array, "B"]  # the position of each token
    slot: Int[Array, ""]  # where its own key and value go

    def extended(self, read: QKV, line: Attention, *_: Any) -> tuple[Memory, "CachedAttention"]:
        """The rows of the cache, with the tokens' own keys and values written into it."""
        cache = self.cache if read.K is None else self.cache.stored(read.K, read.V, self.slot)
        distances = held(self.slot + 1, rows_of(self.cache)) - self.slot
        permitted = self.t[:, None] + distances[None] >= 0
        if line.window is not None:
            first = self.t[:, None] % line.window if line.chunked else line.window - 1
            permitted &= -first <= distances[None]
        if read.chosen is not None:
            chosen: Any = read.chosen(permitted[..., None], by_sequences(whole(cache).K, len(permitted)))
            permitted = chosen[..., 0]

        def of_distances(start: int = 0, n: int | None = None) -> Array:
            return scores_of_distances(read.U, self.P, distances[start:][:n])

        D = None if self.P is None else of_distances
        attend = functools.partial(of_rows, cache, permitted, line.window, D, self.slot)
        return Memory(attend), self._replace(cache=cache)


class ContextAttention(NamedTuple):
    """Cached keys and values of a whole context, for one cross-attention."""

    cache: Rows
    permitted: Bool[Array, "B l_z"]

    def extended(self, read: QKV, line: Attention, *_: Any) -> tuple[Memory, "ContextAttention"]:
        """The known keys and values."""
        return Memory(functools.partial(of_rows, self.cache, self.permitted, line.window, None, None)), self


def scores_of_distances(
    U: Float[Array, "H d_r B"], P: Float[Array, "H d_r R"], distances: Int[Array, "n"]
) -> Float[Array, "H B n"]:
    """Return what the distances to the tokens of n rows add to the scores, by the keys P of those from 1 − R to 0."""
    R = P.shape[-1]
    P = jnp.take(P, jnp.clip(distances + R - 1, 0, R - 1), axis=2)
    return jnp.einsum("hdb,hdc->hbc", U, P, preferred_element_type=accumulation_dtype(U.dtype))
