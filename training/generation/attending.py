"""Attention of one more token, to the rows of a cache."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms.alg03_attention import of_one_head
from algorithms.lines import Attention
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.naming import beside, for_each, shows
from algorithms.model.attention import Read, weights_of
from algorithms.ops.attention.dispatch import scored, softmax_of
from training.generation.cache import Rows, held, rows_of, values_too, whole
from training.generation.projections import read_of_a_column
from training.generation.slots import Asked


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
    Y = cache.attend(Asked(queries, permitted, cap, of_rows, slot, window, sinks))
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
    read: Read, cache: Rows, permitted: Any, line: Attention, of_distances: Any = None, slot: Any = None
) -> Float[Array, "H d_mid B"]:
    """`attend_cached`, with S and A for an observer; by the lines as printed if `line` replaces the softmax."""
    H, _, B = read.Q.shape
    result = read.result or (lambda Y: Y)

    def printed():
        K, V = (jnp.repeat(a.reshape(-1, B, *a.shape[1:]), H * B // len(a), axis=0) for a in values_too(whole(cache)))
        D, seen, R = None if of_distances is None else of_distances(), permitted, K.shape[2]
        if slot is not None:  # the oldest token first, as in a whole sequence
            turned = jnp.where(slot < R, 0, -(slot + 1) % R)
            K, V, seen = jnp.roll(K, turned, 2), jnp.roll(V, turned, 2), jnp.roll(seen, turned, 1)
            D = None if D is None else jnp.roll(D, turned, 2)
        of_D, weights = None if D is None else 0, weights_of(line, read.own)

        def of_sequence(Q, K, V, permitted, D, own):
            score = functools.partial(scored, D=D, cap=line.cap, d_attn=len(Q))
            return of_one_head(Q, K.T, V.T, permitted, score, softmax_of(weights, own), lambda A: A)

        with for_each(2):
            of_head = jax.vmap(of_sequence, (1, 0, 0, 0, of_D, None), 1)
            return result(jax.vmap(of_head, (0, 0, 0, None, of_D, 0))(read.Q, K, V, seen, D, read.own))

    if shows("printed") or line.replaces_softmax:
        return printed()
    sinks = read.own if line.sinks else None
    Y = attend_cached(read.Q, cache, permitted, line.cap, of_distances, slot, line.window, sinks)
    return beside(result(Y.reshape(H, -1, B)), printed)


class CachedAttention(NamedTuple):
    """What one attention keeps for one more token of each of B sequences."""

    cache: Rows
    P: Any  # the keys of distances, or None
    t: Int[Array, "B"]  # the position of each token
    slot: Int[Array, ""]  # where its own key and value go

    def attend(self, read: Read, line: Attention) -> tuple[Array, "CachedAttention"]:
        """Write the tokens' own keys and values into the cache, and attend to its rows."""
        cache = self.cache.stored(read.K, read.V, self.slot)
        distances = held(self.slot + 1, rows_of(self.cache)) - self.slot
        permitted = self.t[:, None] + distances[None] >= 0
        if line.window is not None:
            first = self.t[:, None] % line.window if line.chunked else line.window - 1
            permitted &= -first <= distances[None]

        def of_distances(start: int = 0, n: int | None = None) -> Array:
            return scores_of_distances(read.U, self.P, distances[start:][:n])

        D = None if self.P is None else of_distances
        return of_rows(read, cache, permitted, line, D, self.slot), self._replace(cache=cache)


class ContextAttention(NamedTuple):
    """What one attention keeps of a context: all keys and values."""

    cache: Rows
    permitted: Bool[Array, "B l_z"]

    def attend(self, read: Read, line: Attention) -> tuple[Array, "ContextAttention"]:
        """Attend to the known keys and values."""
        return of_rows(read, self.cache, self.permitted, line), self


def scores_of_distances(
    U: Float[Array, "H d_r B"], P: Float[Array, "H d_r R"], distances: Int[Array, "n"]
) -> Float[Array, "H B n"]:
    """Return what the distances to the tokens of n rows add to the scores, by the keys P of those from 1 − R to 0."""
    R = P.shape[-1]
    P = jnp.take(P, jnp.clip(distances + R - 1, 0, R - 1), axis=2)
    return jnp.einsum("hdb,hdc->hbc", U, P, preferred_element_type=accumulation_dtype(U.dtype))
