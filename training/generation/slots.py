"""A cache in parts: a step reads only those that have been written, so its cost follows the text and not the capacity.

The rows of a cache of R slots are in parts of n, n, n, n, 2n, 2n, 4n, 4n, … consecutive ones, arrays of their own. Each
step reads a part only if a token is in it (and within a layer's window), by a `jax.lax.cond` for each part, and joins
what it reads by an online softmax. So one program serves a capacity, and growing copies nothing. This is for CPUs;
elsewhere a condition would cost a synchronization, and `training.generation.cache.KeyValues` is read as a whole.

Keys are transposed, ``[H*B, d, n]``: the product with the queries of heads that share keys is up to three times as fast
so, and with one query it is as fast.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.ops.activation import capped

SMALLEST_PART = 64
SHARE = 4  # a smallest part has at most 1/4 of the bytes of an attention's weights: finer ones would save nothing


def smallest_part(B: int, d_e: int, H: int, H_kv: int) -> int:
    """Return n, a power of two, for B sequences.

    Example:
        >>> smallest_part(1, 576, 9, 3), smallest_part(16, 256, 8, 8)
        (512, 64)
    """
    rows = d_e * (H + H_kv) // (SHARE * B * H_kv)
    return max(SMALLEST_PART, 1 << (max(1, rows).bit_length() - 1))


def sizes_of_parts(R: int, n: int) -> tuple[int, ...]:
    """Return the number of rows of each part of R, which is a power of two like n.

    Example:
        >>> sizes_of_parts(1024, 64), sizes_of_parts(64, 512)
        ((64, 64, 64, 64, 128, 128, 256, 256), (64,))
    """
    sizes = [min(n, R)]
    while (rows := sum(sizes)) < R:
        sizes += [rows] if rows == n else [rows // 2, rows // 2]
    return tuple(sizes)


class CacheQueries(NamedTuple):
    """Queries that attend to a cache: g of each head of each sequence, whose token is in `slot`."""

    queries: Float[Array, "HB g d_attn"]
    permitted: Bool[Array, "B R"]  # the rows
    cap: float | None  # of the scores
    of_distances: Callable[..., Array] | None  # ``of_distances(start, n)`` is added to the scores of n rows, [HB, g, n]
    slot: Int[Array, ""] | None  # None: of a context, all of whose rows are read
    window: int | None  # how many rows up to the slot are read
    sinks: Float[Array, "HB g _"] | None  # scores without a value


@functools.partial(jax.tree_util.register_dataclass, data_fields=("K", "V"), meta_fields=("n", "limit"))
@dataclasses.dataclass(frozen=True)
class Slots:
    """The keys and values that one attention reads, of all heads and sequences, in parts of consecutive slots."""

    K: tuple[Float[Array, "HB d_attn _"], ...]
    V: tuple[Float[Array, "HB _ d_mid"], ...]
    n: int  # see `sizes_of_parts`
    limit: int | None = None  # of how many tokens, the last, they are kept once there are more slots; None: of all

    @staticmethod
    def of(K: Float[Array, "HB R d_attn"], V: Float[Array, "HB R d_mid"], n: int, limit: int | None = None) -> "Slots":
        """Return a cache with these rows."""
        ends = np.cumsum(sizes_of_parts(V.shape[1], n))[:-1].tolist()
        return Slots(tuple(jnp.split(K.swapaxes(1, 2), ends, axis=2)), tuple(jnp.split(V, ends, axis=1)), n, limit)

    @property
    def starts(self) -> Sequence[int]:
        """The first slot of each part, and the number of slots."""
        return np.cumsum([0, *(part.shape[1] for part in self.V)]).tolist()

    def rows(self) -> tuple[Float[Array, "HB R d_attn"], Float[Array, "HB R d_mid"]]:
        """Return all keys and all values, a row for each."""
        return jnp.concatenate(self.K, axis=2).swapaxes(1, 2), jnp.concatenate(self.V, axis=1)

    def stored(self, K: Float[Array, "H d_attn B"], V: Float[Array, "H d_mid B"], slot: Int[Array, ""]) -> "Slots":
        """Return the cache with the key and value of one more token of each sequence, in this slot."""
        K, V = (a.transpose(0, 2, 1).reshape(a.shape[0] * a.shape[2], a.shape[1]) for a in (K, V))

        def store(part, i):
            write = jax.lax.dynamic_update_slice_in_dim
            return write(part[0], K[:, :, None], i, axis=2), write(part[1], V[:, None, :], i, axis=1)

        starts, parts = self.starts, list(zip(self.K, self.V, strict=True))
        for j, part in enumerate(parts):
            here = (starts[j] <= slot) & (slot < starts[j + 1])
            parts[j] = jax.lax.cond(here, store, lambda part, _: part, part, slot - starts[j])
        return Slots(tuple(K for K, _ in parts), tuple(V for _, V in parts), self.n, self.limit)

    def grown(self, R: int) -> "Slots":
        """Return the cache with R rows, the new ones 0."""
        new = sizes_of_parts(R, self.n)[len(self.V) :]
        (HB, d_attn, first), d_mid = self.K[0].shape, self.V[0].shape[2]
        if first < self.n:  # its only part grows
            K, V = (jnp.pad(rows, ((0, 0), (0, R - first), (0, 0))) for rows in self.rows())
            return Slots.of(K, V, self.n, self.limit)
        K = tuple(jnp.zeros((HB, d_attn, size), self.K[0].dtype) for size in new)
        V = tuple(jnp.zeros((HB, size, d_mid), self.V[0].dtype) for size in new)
        return Slots(self.K + K, self.V + V, self.n, self.limit)

    def attend(self, given: CacheQueries) -> Float[Array, "HB g d_mid"]:
        """Lines 4 to the end of Algorithm 4."""
        queries, permitted, cap, of_distances, slot, window, sinks = given
        assert slot is not None
        HB, g, d_attn = queries.shape
        dtype = accumulation_dtype(queries.dtype)
        first = jnp.full((HB, g, 1), -jnp.inf, dtype), jnp.zeros((HB, g, 1), dtype)
        if sinks is not None:
            first = sinks.astype(dtype), jnp.ones((HB, g, 1), dtype)
        d_mid = self.V[0].shape[2] or d_attn
        so_far = (*first, jnp.zeros((HB, g, d_mid), dtype))  # largest, sum, product

        def read(so_far, K, V, permitted, start):
            before, total, Y = so_far
            S = jnp.einsum("rdc,rqd->rqc", K, queries, preferred_element_type=dtype)
            if of_distances is not None:
                S = S + of_distances(start, K.shape[2])
            S = capped(S, cap, d_attn) / jnp.sqrt(d_attn).astype(dtype)
            S = jnp.where(permitted[None, :, None], S.reshape(-1, len(permitted), g, K.shape[2]), -jnp.inf)
            S = S.reshape(HB, g, -1)
            largest = jnp.maximum(before, S.max(axis=2, keepdims=True))
            shift = jnp.where(jnp.isneginf(largest), 0, largest)
            E, scale = jnp.exp(S - shift), jnp.exp(before - shift)
            V = V if V.shape[2] else K.swapaxes(1, 2)  # keys serve as values
            of_part = jnp.einsum("rqc,rcd->rqd", E.astype(V.dtype), V, preferred_element_type=dtype)
            return largest, total * scale + E.sum(axis=2, keepdims=True), Y * scale + of_part

        for (start, end), K, V in zip(itertools.pairwise(self.starts), self.K, self.V, strict=True):
            arguments = so_far, K, V, permitted[:, start:end]
            if start == 0 and window is None:
                so_far = read(*arguments, start)
                continue
            is_read = start <= slot
            if window is not None:
                is_read &= slot - window < end
            of_part = functools.partial(read, start=start)
            so_far = jax.lax.cond(is_read, of_part, lambda so_far, *_: so_far, *arguments)
        _, total, Y = so_far
        return (Y / jnp.where(total == 0, 1, total)).astype(self.V[0].dtype)
