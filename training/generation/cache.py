"""The cache of keys and values, with which a new token costs one column instead of a forward pass.

A cache is ``[H*B, R, d]``: for each head of each sequence, one row per token, contiguous. In this layout a compiled
loop writes a row in place (XLA copies the whole cache if the batch has an axis of its own), and the product with a
query reads the cache once, at memory speed. The token in slot s is in row s mod R. If every layer has a window, R is at
most the widest one, however long the text is. Otherwise R is the number C of slots, which grows in buckets: a program
compiled for a bucket serves all lengths in it. On CPUs, such a cache is in parts, see `slots.Slots`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms import AttentionParams, MHAttentionParams
from algorithms.alg03_attention import of_one_head
from algorithms.lines import Attention
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.naming import beside, for_each, shows
from algorithms.machinery.platform import platform_of
from algorithms.machinery.sharding import devices_sharing
from algorithms.model.attention import Read, weights_of
from algorithms.model.positions import Table
from algorithms.ops.attention.dispatch import scored, softmax_of
from algorithms.ops.products import product
from algorithms.ops.softmax import capped, softmax
from training.generation.quantized import QuantizedMatrix
from training.generation.slots import Slots

EQUAL_ROWS = 8  # how often a query is repeated on a TPU, where a product with eight rows is much faster than with one
SMALLEST_BUCKET, SMALLEST_CAPACITY = 16, 64


def bucket(n: int) -> int:
    """Return the least of 16, 24, 32, 48, 64, 96, … that is at least n.

    Example:
      >>> [bucket(n) for n in (1, 17, 33, 64, 1000)]
      [16, 24, 48, 64, 1024]
    """
    size = SMALLEST_BUCKET
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size


def bucketed(x: np.ndarray, l_max: int) -> np.ndarray:
    """Return tokens ``[B, l]`` padded on the right to the bucket of l, or to l_max if that is less."""
    return np.pad(x, ((0, 0), (0, min(bucket(x.shape[1]), l_max) - x.shape[1])))


def capacity(n: int) -> int:
    """Return the first number of slots for n tokens, a power of two, since each is compiled; it doubles when full."""
    return 1 << (max(n, SMALLEST_CAPACITY) - 1).bit_length()


def held(slot: Any, R: int) -> Int[Array, "R"]:
    """Return the slot that each row of a cache holds once all slots before `slot` are written.

    Example:
      >>> held(6, 4).tolist()
      [4, 5, 2, 3]
    """
    return slot - 1 - (slot - 1 - jnp.arange(R)) % R


class KeyValues(NamedTuple):
    """The keys and values that one attention reads, of all heads and sequences, head by head."""

    K: Float[Array, "HB R d_attn"]
    V: Float[Array, "HB R d_mid"]

    @staticmethod
    def of(K: Float[Array, "H d_attn B l"], V: Float[Array, "H d_mid B l"]) -> "KeyValues":
        """Return the keys and values of whole sequences, one row per token."""

        def rows(columns):
            H, d, B, l = columns.shape
            return columns.transpose(0, 2, 3, 1).reshape(H * B, l, d)

        return KeyValues(rows(K), rows(V))

    def stored(self, K: Float[Array, "H d_attn B"], V: Float[Array, "H d_mid B"], slot: Int[Array, ""]) -> "KeyValues":
        """Return the cache with the key and value of one more token of each sequence, in this slot."""

        def store(cache, column):
            rows = column.transpose(0, 2, 1).reshape(len(cache), 1, column.shape[1])
            return jax.lax.dynamic_update_slice_in_dim(cache, rows, slot % cache.shape[1], axis=1)

        return KeyValues(store(self.K, K), store(self.V, V))

    def grown(self, R: int) -> "KeyValues":
        """Return the cache with R rows, the new ones 0."""
        return KeyValues(*(jnp.pad(cache, ((0, 0), (0, R - cache.shape[1]), (0, 0))) for cache in self))

    def taken(self, rows: Int[Array, "R"]) -> "KeyValues":
        """Return the cache with the given rows of every sequence."""
        return KeyValues(*(jnp.take(cache, rows, axis=1) for cache in self))

    def arranged(self, rows: Int[Array, "B R"]) -> "KeyValues":
        """Return the cache with the given rows of each of B sequences; a negative index gives an arbitrary row."""

        def arrange(cache):
            B, R = rows.shape
            of_heads = cache.reshape(len(cache) // B, B, *cache.shape[1:])
            chosen = jnp.clip(rows, 0, cache.shape[1] - 1)[None, :, :, None]
            return jnp.take_along_axis(of_heads, chosen, axis=2).reshape(len(cache), R, cache.shape[2])

        return KeyValues(arrange(self.K), arrange(self.V))


class Kept(NamedTuple):
    """What a mixer that is no attention has kept: arrays whose last axis has the sequences."""

    state: Any


Rows = KeyValues | Slots
"""What a step reads and writes of one attention."""

Cache = Rows | Kept
"""What a step reads and writes of one layer."""


def is_in_parts(leaf: Any) -> bool:
    """Whether caches are in parts for the model that an array belongs to: on a CPU, if it is on one device."""
    return platform_of(leaf) == "cpu" and devices_sharing(leaf) == 1


def with_room(cache: Cache, C: int, most: int | None, n: int | None) -> Cache:
    """Return a cache with room for C slots, or the last `most`; in parts if it is for all slots and n is given."""
    if isinstance(cache, Kept):
        return cache
    R = min(C, most or C)
    if isinstance(cache, Slots):
        return (cache if C == R else whole(cache)).grown(R)
    cache = cache.grown(R)
    return Slots.of(*cache, n) if C == R and n is not None else cache


def whole(cache: Rows) -> KeyValues:
    """Return a cache in one part."""
    return KeyValues(*cache.rows()) if isinstance(cache, Slots) else cache


def rows_of(cache: Rows) -> int:
    """Return the number of rows of a cache."""
    return cache.starts[-1] if isinstance(cache, Slots) else cache.K.shape[1]


def side_by_side(cache: Cache, other: Cache, B: int) -> Cache:
    """Return a cache of B sequences, followed by the sequences of another."""

    def both(cache, of_others):
        H = len(cache) // B
        parts = [a.reshape(H, len(a) // H, *a.shape[1:]) for a in (cache, of_others)]
        return jnp.concatenate(parts, axis=1).reshape(len(cache) + len(of_others), *cache.shape[1:])

    if isinstance(cache, Kept):
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-1), cache, other)
    return jax.tree.map(both, cache, other)


def chosen_sequences(cache: Cache, chosen: Int[Array, "n"], B: int) -> Cache:
    """Return the cache of the chosen sequences among B, in that order."""

    def choose(cache):
        H = len(cache) // B
        return cache.reshape(H, B, *cache.shape[1:])[:, chosen].reshape(H * len(chosen), *cache.shape[1:])

    if isinstance(cache, Kept):
        return jax.tree.map(lambda a: a[..., chosen], cache)
    return jax.tree.map(choose, cache)


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
    if isinstance(cache, Slots):
        assert slot is not None
        Y = cache.attend(queries, permitted, cap, None if of_distances is None else added, slot, window, sinks)
    else:
        Y = _attend_to_rows(queries, cache, permitted, cap, None if of_distances is None else added(), sinks)
    return Y.reshape(H_kv, B, g, -1).transpose(0, 2, 3, 1).reshape(-1, B)


def _attend_to_rows(queries, cache, permitted, cap, of_distances, sinks) -> Float[Array, "HB g d_mid"]:
    (HB, g, d_attn), (K, V) = queries.shape, values_too(*cache)
    equal = EQUAL_ROWS if platform_of(queries) == "tpu" and g == 1 else g
    queries = jnp.broadcast_to(queries, (HB, equal, d_attn))
    S = jnp.einsum("rcd,rqd->rqc", K, queries, preferred_element_type=accumulation_dtype(queries.dtype))
    if of_distances is not None:
        S = S + of_distances
    S = capped(S, cap, d_attn)
    of_sequences = S.reshape(-1, len(permitted), equal, S.shape[2])
    S = jnp.where(permitted[None, :, None], of_sequences, -jnp.inf).reshape(S.shape)
    S = S / jnp.sqrt(d_attn).astype(S.dtype)
    if sinks is not None:
        S = jnp.concatenate([S, jnp.broadcast_to(sinks.astype(S.dtype), (HB, equal, 1))], axis=2)
    A = jax.vmap(jax.vmap(softmax))(S)[:, :, : K.shape[1]]
    return jnp.einsum("rqc,rcd->rqd", A.astype(V.dtype), V)[:, :g]


def values_too(K: Float[Array, "HB R d_attn"], V: Float[Array, "HB R d_mid"]) -> tuple[Array, Array]:
    """Return the keys and values of a cache, whose keys serve as values if it has none."""
    return K, V if V.shape[2] else K


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Projections:
    """The weights of one attention, laid out so that one product projects a column for all heads."""

    W: Any  # [rows, d_e]: W_q of all heads, and for self-attention W_k and W_v below it
    b: tuple[Any, ...]  # the biases of each of these, or None
    W_o: Any  # [d_out, H*d_mid], the output projection
    b_o: Any  # its bias, or None
    gamma_q: Any  # the scale of the norm of queries, as in `MHAttentionParams`
    gamma_k: Any  # the scale of the norm of keys
    norm_out: Any  # the norm of the output
    W_r: Any  # Transformer-XL's projection of distances
    u: Any  # its bias of queries for the product with keys
    v: Any  # its bias of queries for the product with distances
    s: Any  # the sinks
    of_positions: Any  # the parameters of positions of one's own
    W_g: Any  # the projection of the gate of what the heads give
    rows: tuple[tuple[int, int], ...] = dataclasses.field(metadata={"static": True})  # heads, and rows per head, in W

    @staticmethod
    def of(params: MHAttentionParams, *, context: bool) -> "Projections":
        """Lay out weights for self-attention or, if ``context``, for a context whose keys and values are known."""
        h = params.heads
        W, b = ((h.W_q,), (h.b_q,)) if context else ((h.W_q, h.W_k, h.W_v), (h.b_q, h.b_k, h.b_v))
        of_all = QuantizedMatrix.stacked(W) if isinstance(W[0], QuantizedMatrix) else _stacked(*W)
        return Projections(of_all, b, *params[1:], rows=tuple((a.shape[0], a.shape[1]) for a in W))

    @property
    def heads(self) -> AttentionParams:
        """The matrices and biases one by one, for a line of one's own (None: a known context's); not of int8."""
        if not isinstance(self.W, jax.Array):
            raise ValueError(
                "int8: expected an attention that projects by Attention.read, got one that reads W_q, W_k and W_v "
                "itself; generate with the weights as they are"
            )
        ends = np.cumsum([H * d for H, d in self.rows])[:-1]
        W = [a.reshape(*n, a.shape[-1]) for a, n in zip(jnp.split(self.W, ends), self.rows, strict=True)]
        of_each = [part for pair in zip(W, self.b, strict=True) for part in pair]
        return AttentionParams(*of_each, *[None] * (6 - len(of_each)))

    def products(self, X: Float[Array, "d_e B"], *, of_positions: bool = False) -> tuple[Any, ...]:
        """Return what `algorithms.model.attention.products` does; of a context, whose keys are known, only queries."""
        ends = np.cumsum([H * d for H, d in self.rows])[:-1]
        found = [Y.reshape(*n, -1) for Y, n in zip(jnp.split(product(self.W, X), ends), self.rows, strict=True)]
        if of_positions:
            return tuple(found[:2])
        found = [Y if b is None else Y + b[..., None] for Y, b in zip(found, self.b, strict=True)]
        return (*found, None, None)[:3]


def read_of_a_column(line: Attention, W: Any, d_e: int, dtype: Any, table: Any = None) -> Read:
    """Return what an attention reads of a column of zeros: for its shapes, and for the keys of distances."""
    X, t = jnp.zeros((d_e, 1), dtype), jnp.zeros(1, jnp.int32)
    return line.read(X, X, W, t_x=t, t_z=t, table=Table(table), implementation="paper")


def sizes_of_heads(line: Attention, W: Any, d_e: int, dtype: Any) -> tuple[int, int, int, int]:
    """Return the number of heads of queries, and of keys and values, and the rows of a key and of a value."""
    Q, K, V = jax.eval_shape(lambda W: read_of_a_column(line, W, d_e, dtype)[:3], W)
    return Q.shape[0], K.shape[0], K.shape[1], V.shape[1]


def keys_of_distances(line: Attention, W: Any, d_e: int, dtype: Any, table: Any, R: int) -> Any:
    """Return the keys of the distances from 1 − R to 0, ``[H, d_r, R]``; None if no scores use distances."""
    if not isinstance(line, Attention):
        return None
    by_distance = line.positions is not None and line.positions.by_distance
    if not by_distance and type(line).read is Attention.read:
        return None
    read = read_of_a_column(line, W, d_e, dtype, table)
    return None if read.P is None else read.P(np.arange(1 - R, 1))


@jax.jit
def _stacked(*W: Float[Array, "H _ d_e"]) -> Float[Array, "rows d_e"]:
    return jnp.concatenate([a.reshape(-1, a.shape[-1]) for a in W])


def of_rows(
    read: Read, cache: Rows, permitted: Any, line: Attention, of_distances: Any = None, slot: Any = None
) -> Float[Array, "H d_mid B"]:
    """`attend_cached`, with S and A for an observer; by the lines as printed if `line` replaces the softmax."""
    H, _, B = read.Q.shape
    result = read.result or (lambda Y: Y)

    def printed():
        K, V = (jnp.repeat(a.reshape(-1, B, *a.shape[1:]), H * B // len(a), axis=0) for a in values_too(*whole(cache)))
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


class Step(NamedTuple):
    """What one attention keeps for one more token of each of B sequences."""

    cache: Rows
    P: Any  # the keys of distances, or None
    t: Int[Array, "B"]  # the position of each token
    slot: Int[Array, ""]  # where its own key and value go

    def attend(self, read: Read, line: Attention) -> tuple[Array, "Step"]:
        """Write the tokens' own keys and values into the cache, and attend to its rows."""
        cache = self.cache.stored(read.K, read.V, self.slot)
        distances = held(self.slot + 1, rows_of(self.cache)) - self.slot
        permitted = self.t[:, None] + distances[None] >= 0
        permitted = permitted if line.window is None else permitted & (-line.window < distances)[None]

        def of_distances(start: int = 0, n: int | None = None) -> Array:
            return scores_of_distances(read.U, self.P, distances[start:][:n])

        D = None if self.P is None else of_distances
        return of_rows(read, cache, permitted, line, D, self.slot), self._replace(cache=cache)


class Known(NamedTuple):
    """What one attention keeps of a context: all keys and values."""

    cache: Rows
    permitted: Bool[Array, "B l_z"]

    def attend(self, read: Read, line: Attention) -> tuple[Array, "Known"]:
        """Attend to the known keys and values."""
        return of_rows(read, self.cache, self.permitted, line), self


def scores_of_distances(
    U: Float[Array, "H d_r B"], P: Float[Array, "H d_r R"], distances: Int[Array, "n"]
) -> Float[Array, "H B n"]:
    """Return what the distances to the tokens of n rows add to the scores, by the keys P of those from 1 − R to 0."""
    R = P.shape[-1]
    P = jnp.take(P, jnp.clip(distances + R - 1, 0, R - 1), axis=2)
    return jnp.einsum("hdb,hdc->hbc", U, P, preferred_element_type=accumulation_dtype(U.dtype))
