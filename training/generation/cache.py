"""The cache of keys and values, with which a new token costs one column instead of a forward pass.

A cache is ``[H*B, R, d]``: for each head of each sequence, one row per token, contiguous. In this layout a compiled
loop writes a row in place (XLA copies the whole cache if the batch has an axis of its own), and the product with a
query reads the cache once, at memory speed. The token in slot s is in row s mod R. If every layer has a window, R is at
most the widest one, however long the text is. Otherwise R is the number C of slots, which grows in buckets: a program
compiled for a bucket serves all lengths in it.
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

from algorithms import MHAttentionParams
from algorithms.lines import Attention
from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.naming import beside, numbered, shows
from algorithms.machinery.platform import platform_of
from algorithms.model.distances import ByDistance, Table
from algorithms.ops.linear import linear, product
from algorithms.ops.softmax import capped, softmax

EQUAL_ROWS = 8
"""How often a query is repeated on a TPU, where a product with eight rows is much faster than with one."""

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
    """Return the initial number of slots of a cache for at least n tokens; it doubles when they are full.

    Each capacity is compiled separately, so only powers of two from 64 are used.
    """
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

    def stored(self, K: Float[Array, "H d_attn B"], V: Float[Array, "H d_mid B"], slot: Int[Array, ""]) -> "KeyValues":
        """Return the cache with the key and value of one more token of each sequence, in this slot."""

        def store(cache, column):
            rows = column.transpose(0, 2, 1).reshape(-1, column.shape[1])[:, None, :]
            return jax.lax.dynamic_update_slice_in_dim(cache, rows, slot % cache.shape[1], axis=1)

        return KeyValues(store(self.K, K), store(self.V, V))

    def grown(self, R: int) -> "KeyValues":
        """Return the cache with R rows, the new ones 0."""
        return KeyValues(*(jnp.pad(cache, ((0, 0), (0, R - cache.shape[1]), (0, 0))) for cache in self))

    def arranged(self, rows: Int[Array, "B R"]) -> "KeyValues":
        """Return the cache with the given rows of each of B sequences; a negative index gives an arbitrary row."""

        def arrange(cache):
            of_heads = cache.reshape(-1, len(rows), *cache.shape[1:])
            chosen = jnp.clip(rows, 0, cache.shape[1] - 1)[None, :, :, None]
            return jnp.take_along_axis(of_heads, chosen, axis=2).reshape(-1, rows.shape[1], cache.shape[2])

        return KeyValues(arrange(self.K), arrange(self.V))

    def beside(self, other: "KeyValues", B: int) -> "KeyValues":
        """Return this cache, of B sequences, followed by the sequences of another."""

        def beside(cache, of_others):
            parts = [a.reshape(cache.shape[0] // B, -1, *a.shape[1:]) for a in (cache, of_others)]
            return jnp.concatenate(parts, axis=1).reshape(-1, *cache.shape[1:])

        return KeyValues(beside(self.K, other.K), beside(self.V, other.V))

    def of_sequences(self, chosen: Int[Array, "n"], B: int) -> "KeyValues":
        """Return the cache of the chosen sequences among B, in that order."""

        def choose(cache):
            of_heads = cache.reshape(-1, B, *cache.shape[1:])
            return of_heads[:, chosen].reshape(-1, *cache.shape[1:])

        return KeyValues(choose(self.K), choose(self.V))


def keys_and_values(
    Z: Float[Array, "d_e B l"],
    W: MHAttentionParams,
    line: Attention,
    t: Any,
    implementation: str,
    positions: Float[Array, "d_e _ l"] | None = None,
) -> KeyValues:
    """Return the keys and values of whole sequences (lines 2 and 3 of Algorithm 4), one row per token. t are the
    positions of the tokens; ``positions``, if given, is an additional input of the keys.
    """

    def arranged(columns):
        H, d, B, l = columns.shape
        return columns.transpose(0, 2, 3, 1).reshape(H * B, l, d)

    K = linear(W.heads.W_k, Z, W.heads.b_k, implementation)
    K = K if positions is None else K + linear(W.heads.W_k, positions, None, implementation)
    K = line.keys(K, W, t, implementation)
    V = linear(W.heads.W_v, Z, W.heads.b_v, implementation)
    return KeyValues(arranged(K), arranged(V))


def attend_cached(
    Q: Float[Array, "H d_attn B"],
    cache: KeyValues,
    permitted: Bool[Array, "B R"],
    cap: float | None = None,
    of_distances: Float[Array, "H B R"] | None = None,
) -> Float[Array, "H*d_mid B"]:
    """Lines 4 to the end of Algorithm 4 for one query of each head of each sequence, and line 3 of Algorithm 5.

    If the cache has fewer heads, each of them serves several consecutive ones. A query with nothing to attend to
    outputs 0. ``of_distances``, if given, is added to the scores: a bias for the distance to each row's token.
    """
    _, d_attn, B = Q.shape
    H_kv = cache.K.shape[0] // B
    queries = Q.reshape(H_kv, -1, d_attn, B).transpose(0, 3, 1, 2).reshape(H_kv * B, -1, d_attn)
    g = queries.shape[1]
    equal = EQUAL_ROWS if platform_of(Q) == "tpu" and g == 1 else g
    queries = jnp.broadcast_to(queries, (H_kv * B, equal, d_attn))
    S = jnp.einsum("rcd,rqd->rqc", cache.K, queries, preferred_element_type=accumulation_dtype(Q.dtype))
    if of_distances is not None:
        S = S + of_distances.reshape(H_kv, g, B, -1).swapaxes(1, 2).reshape(H_kv * B, g, -1)
    S = capped(S, cap, d_attn)
    S = jnp.where(permitted[None, :, None], S.reshape(H_kv, B, equal, -1), -jnp.inf).reshape(S.shape)
    A = jax.vmap(jax.vmap(softmax))(S / jnp.sqrt(d_attn).astype(S.dtype))
    Y = jnp.einsum("rqc,rcd->rqd", A.astype(cache.V.dtype), cache.V)[:, :g]
    return Y.reshape(H_kv, B, g, -1).transpose(0, 2, 3, 1).reshape(-1, B)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("W", "b", "W_o", "b_o", "gamma_q", "gamma_k", "norm_out", "W_r", "u", "v", "P"),
    meta_fields=("heads",),
)
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
    P: Any  # the keys of the distances from 1 − R to 0, if scores depend on them; see `with_distances`
    heads: tuple[tuple[int, int], ...]  # the number of heads, and of rows per head, of each matrix in W

    @staticmethod
    def of(params: MHAttentionParams, *, context: bool) -> "Projections":
        """Lay out weights for self-attention or, if ``context``, for a context whose keys and values are known."""
        h = params.heads
        W, b = ((h.W_q,), (h.b_q,)) if context else ((h.W_q, h.W_k, h.W_v), (h.b_q, h.b_k, h.b_v))
        return Projections(_stacked(*W), b, *params[1:], P=None, heads=tuple((a.shape[0], a.shape[1]) for a in W))

    def with_distances(self, line: Attention, table: Any, R: int) -> "Projections":
        """Return the weights with P for R rows, computed once for all tokens; unchanged if no scores use distances."""
        if not isinstance(line.positions, ByDistance):
            return self
        like = jax.ShapeDtypeStruct(self.heads[0], self.W.dtype)
        return dataclasses.replace(self, P=line.positions.keys(np.arange(1 - R, 1), self, Table(table), like))

    def with_matrices(self, kept: Callable[[Array], Any]) -> "Projections":
        """Return the weights with ``kept`` applied to W and W_o."""
        return dataclasses.replace(self, W=kept(self.W), W_o=kept(self.W_o))

    def read(self, X: Float[Array, "d_e B"]) -> list[Float[Array, "H _ B"]]:
        """Return the queries and, for self-attention, the keys and values."""
        return [Y if b is None else Y + b[..., None] for Y, b in zip(self.products(X), self.b, strict=True)]

    def products(self, X: Float[Array, "d_e B"]) -> list[Float[Array, "H _ B"]]:
        """Return the same without biases."""
        ends = np.cumsum([H * d for H, d in self.heads])[:-1]
        return [Y.reshape(*n, -1) for Y, n in zip(jnp.split(product(self.W, X), ends), self.heads, strict=True)]


@jax.jit
def _stacked(*W: Float[Array, "H _ d_e"]) -> Float[Array, "rows d_e"]:
    return jnp.concatenate([a.reshape(-1, a.shape[-1]) for a in W])


class NewTokens(NamedTuple):
    """Where the new token of each of B sequences is, and which rows of a cache it attends to."""

    permitted: Bool[Array, "B R"]  # rows that it may attend to
    t: Int[Array, "B"]  # its position
    slot: Int[Array, ""] | None = None  # where its own key and value go; None: nowhere, the cache is of a context
    distances: Int[Array, "B R"] | None = None  # from it to the token of each row; None for a context
    positions: Float[Array, "d_e B"] | None = None  # an additional input of its query and key, or None


@numbered
def mh_attention_cached(
    line: Attention, X: Float[Array, "d_e B"], W: Projections, cache: KeyValues, new: NewTokens
) -> tuple[Float[Array, "d_out B"], KeyValues]:
    """Algorithm 5 for one more token of each sequence, the columns of X; return the output and the new cache."""
    Y, cache = attention_cached(line, X, W, cache, new)  # lines 1-2
    Y = Y.reshape(-1, Y.shape[2])  # line 3
    V_tilde = linear(W.W_o, Y, W.b_o, "paper")  # return
    return line.output(V_tilde, W, "paper"), cache


@numbered
def attention_cached(
    line: Attention, X: Float[Array, "d_e B"], W: Projections, cache: KeyValues, new: NewTokens
) -> tuple[Float[Array, "H d_mid B"], KeyValues]:
    """Algorithm 4 for one more token of each sequence, for every head."""
    Q, *own = W.read(X)  # line 1
    if new.slot is not None:
        K = own[0]  # line 2
        V = own[1]  # line 3
        if new.positions is not None:
            of_Q, of_K, _ = W.products(new.positions)
            Q, K = Q + of_Q, K + of_K
        cache = cache.stored(line.keys(K, W, new.t, "paper"), V, new.slot)
    S = None if W.P is None else scores_of_distances(line.distant(Q, W, "paper"), W.P, new.distances)
    Q = line.queries(Q, W, new.t, "paper")
    arguments = Q, cache, new.permitted, line.cap, S
    if shows("printed"):
        V_tilde = _as_printed(*arguments)  # lines 4-5, return
    else:
        V_tilde = attend_cached(*arguments).reshape(Q.shape[0], -1, Q.shape[2])  # lines 4-5, return
        V_tilde = beside(V_tilde, lambda: _as_printed(*arguments))  # S and A, for an observer
    return V_tilde, cache


@numbered
def _as_printed(
    Q: Float[Array, "H d_attn B"],
    cache: KeyValues,
    permitted: Bool[Array, "B R"],
    cap: float | None,
    of_distances: Float[Array, "H B R"] | None,
) -> Float[Array, "H d_mid B"]:
    """Lines 4 to the end of Algorithm 4 for one query of each head, as printed; rows of S are context tokens."""
    H, d_attn, B = Q.shape
    K, V = (jnp.repeat(a.reshape(-1, B, *a.shape[1:]), H * B // len(a), axis=0) for a in cache)
    S = jnp.einsum("hbcd,hdb->hcb", K, Q, preferred_element_type=accumulation_dtype(Q.dtype))  # line 4
    if of_distances is not None:
        S = S + of_distances.swapaxes(1, 2)  # S in the paper
    S = capped(S, cap, d_attn)  # S in the paper
    S = jnp.where(permitted.T[None], S, -jnp.inf)  # line 5
    A = jax.vmap(softmax)(S / jnp.sqrt(d_attn).astype(S.dtype))  # return
    V_tilde = jnp.einsum("hcb,hbcd->hdb", A, V.astype(A.dtype)).astype(V.dtype)  # return
    return V_tilde


def scores_of_distances(
    U: Float[Array, "H d_r B"], P: Float[Array, "H d_r R"], distances: Any
) -> Float[Array, "H B R"]:
    """Return what the distances from new tokens to the rows' tokens add to the scores; arbitrary for tokens ahead."""
    S = jnp.einsum("hdb,hdc->hbc", U, P, preferred_element_type=accumulation_dtype(U.dtype))
    R = P.shape[-1]
    return jnp.take_along_axis(S, jnp.clip(distances + R - 1, 0, R - 1)[None], axis=2)
