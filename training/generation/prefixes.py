"""What was read already: a text that begins as an earlier one did is read from where they part.

The keys and values of a token depend on those before it only, so of two texts with the same beginning they are the
same. `Prefixes` keeps them for the texts that were read last, slot by token; a conversation, whose every turn begins
with those before it, or requests with one system message are then read once. It keeps those of all tokens, even where
every layer has a window, since texts may part anywhere.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from algorithms import DTransformerConfig, DTransformerParams, Variant
from algorithms.alg10_d_transformer import decoder_lines, hidden_state
from algorithms.model.distances import ByDistance
from algorithms.ops.linear import linear
from training.generation import reading, states
from training.generation.cache import KeyValues, attend_cached, bucket, capacity, scores_of_distances
from training.generation.states import State

LEAST = 16
"""Tokens: what is shorter is not worth looking for."""

FEW, MANY = 64, 256
"""Columns that are read at once, so that little is compiled."""


class _Text(NamedTuple):
    """A text that was read, and the keys and values of its tokens, ``[L, H, C, d]`` each."""

    tokens: Int[np.ndarray, "n"]
    caches: KeyValues

    @property
    def nbytes(self) -> int:
        return self.caches.K.nbytes + self.caches.V.nbytes


class Prefixes:
    """The texts that were read last, as far as they fit.

    Attributes:
        most: bytes of keys and values that are kept.
        found: how many tokens were not read again.
    """

    def __init__(self, most: int) -> None:
        self.most, self.found = most, 0
        self._texts: list[_Text] = []

    @staticmethod
    def for_texts(n: int, theta: DTransformerParams, config: DTransformerConfig) -> "Prefixes":
        """Return what has room for this many texts that fill the context."""
        of_token = config.L * config.H_kv * (config.d_attn + config.d_mid) * theta.W_e.dtype.itemsize
        return Prefixes(n * bucket(config.l_max) * of_token)

    def copy(self) -> "Prefixes":
        """Return the same texts, for a reader of its own."""
        other = Prefixes(self.most)
        other._texts = list(self._texts)
        return other

    @property
    def nbytes(self) -> int:
        """How many bytes are kept."""
        return sum(text.nbytes for text in self._texts)

    def read(
        self,
        theta: DTransformerParams,
        apart: DTransformerParams,
        x: np.ndarray,
        lengths: np.ndarray,
        *,
        config: DTransformerConfig,
        C: int,
    ) -> State:
        """Read prompts, padded on the right, as `reading.prefill` does, those that begin as an earlier text from where
        they part; ``apart`` is θ as `layout.apart` returns it. The variant has no dropout; the cache gets at least C
        slots, more than x has columns.
        """
        texts = [row[:length] for row, length in zip(x, lengths, strict=True)]
        begun = [self._begin(text) for text in texts]
        new = [r for r, one in enumerate(begun) if one is None]
        if len(new) == len(texts):
            state = reading.prefill(apart, x, lengths, variant=config.variant, C=C)
            for r in range(len(texts)):
                self.keep(state, r)
            return state
        rows: list[KeyValues] = []
        first: dict[int, KeyValues] = {}
        if new:
            new += new[:1] * ((1 << (len(new) - 1).bit_length()) - len(new))  # so that little is compiled
            state = reading.prefill(apart, x[new], lengths[new], variant=config.variant, C=C)
            first = {r: _of_row(state, i, C=C) for i, r in reversed(list(enumerate(new)))}
        for r, (text, one) in enumerate(zip(texts, begun, strict=True)):
            rows.append(first[r] if one is None else self._read_on(theta, text[:-1], *one, config=config, C=C))
            self._add(text[:-1], rows[r])
        C = max(row.K.shape[2] for row in rows)
        return _beside(tuple(_grown(row, C=C) for row in rows), x, lengths)

    def keep(self, state: State, r: int) -> None:
        """Keep what was read of a sequence, with what was generated of it."""
        slot, first, length = int(state.slot), int(state.first[r]), int(state.lengths[r])
        n = length - 1 + slot - first
        of_slots = np.asarray(state.tokens[r])
        tokens = np.concatenate([of_slots[: length - 1], of_slots[first:slot]])
        if n >= LEAST:
            self._add(tokens, _of_row(state, r, C=bucket(n)))

    def _begin(self, text: np.ndarray) -> tuple[int, KeyValues] | None:
        """Return with how many tokens a text begins that were read, but for its last, and their keys and values."""
        best = max(self._texts, key=lambda other: _shared(text[:-1], other.tokens), default=None)
        n = 0 if best is None else _shared(text[:-1], best.tokens)
        if best is None or n < LEAST:
            return None
        self._texts.append(self._texts.pop(next(i for i, other in enumerate(self._texts) if other is best)))
        self.found += n
        return n, best.caches

    def _read_on(
        self,
        theta: DTransformerParams,
        text: np.ndarray,
        n: int,
        caches: KeyValues,
        *,
        config: DTransformerConfig,
        C: int,
    ) -> KeyValues:
        """Return the keys and values of a text of which n tokens were read."""
        at_once = FEW if len(text) - n <= MANY else MANY
        end = n + -(-(len(text) - n) // at_once) * at_once
        caches = _grown(caches, C=capacity(max(C, end)))
        for start in range(n, end, at_once):
            columns = text[start : start + at_once]
            x = np.pad(columns, (0, at_once - len(columns))).astype(np.int32)
            t = np.minimum(np.arange(start, start + at_once), config.l_max - 1).astype(np.int32)
            caches = read_more(theta, caches, x, t, jnp.asarray(start, jnp.int32), variant=config.variant)
        return caches

    def _add(self, tokens: np.ndarray, caches: KeyValues) -> None:
        """Keep a text; those that it begins with need no place of their own."""
        n = len(tokens)
        if n < LEAST or any(_shared(tokens, other.tokens) == n for other in self._texts):
            return
        text = _Text(np.array(tokens), _grown(caches, C=bucket(n)))
        if text.nbytes > self.most:
            return
        self._texts = [other for other in self._texts if _shared(tokens, other.tokens) < len(other.tokens)]
        self._texts.append(text)
        while self.nbytes > self.most:
            del self._texts[0]


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many tokens two texts begin with in common.

    Example:
        >>> _shared(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
        2
    """
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


@functools.partial(jax.jit, static_argnames=("variant",))
def read_more(
    theta: DTransformerParams,
    caches: KeyValues,
    x: Int[Array, "M"],
    t: Int[Array, "M"],
    n: Int[Array, ""],
    *,
    variant: Variant,
) -> KeyValues:
    """Read M more tokens x of one text, at the positions t, with Algorithm 10: they attend to what was read, and to
    each other. `caches` has keys and values of the first n tokens, ``[L, H, C, d]`` each, with room for M more. What
    follows the end of x is padding, which is never attended to.
    """
    s = jnp.arange(caches.K.shape[2])[None]

    def attend(line, X, Z, W, mask, *, table, **_):
        W, before = W
        K = line.keys(linear(W.heads.W_k, X, W.heads.b_k, "paper"), W, t, "paper")
        V = linear(W.heads.W_v, X, W.heads.b_v, "paper")
        cache = KeyValues(*map(_stored, before, (K, V), (n, n)))
        Q = linear(W.heads.W_q, X, W.heads.b_q, "paper")
        S = None
        if isinstance(line.positions, ByDistance):
            P = line.positions.keys(np.arange(1 - s.shape[1], 1), W, table, Q)
            S = scores_of_distances(line.distant(Q, W, "paper"), P, s - t[:, None])
        Q = line.queries(Q, W, t, "paper")
        permitted = s <= t[:, None] if line.window is None else (s <= t[:, None]) & (t[:, None] - line.window < s)

        def of_column(q, permitted, S):
            S = None if S is None else S[:, None]
            return attend_cached(q[..., None], cache, permitted[None], line.cap, S)[:, 0]

        Y = jax.vmap(of_column, (2, 0, None if S is None else 1), 1)(Q, permitted, S)
        return line.output(linear(W.W_o, Y, W.b_o, "paper"), W, "paper"), cache

    kept: list[Any] = []
    layers = variant.of_every_layer(theta.layers)
    layers = layers._replace(attention=(layers.attention, caches))
    lines = decoder_lines(variant.but(shared_layers=1), "paper", attend=attend, kept=kept)
    hidden_state(x, t, theta._replace(layers=layers), None, None, lines)
    return kept[0]


def _stored(of_layer: Array, columns: Array, n: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(of_layer, columns.swapaxes(1, 2), n, axis=1)


@functools.partial(jax.jit, static_argnames=("C",))
def _grown(caches: KeyValues, *, C: int) -> KeyValues:
    """Return keys and values with C slots, of which the last ones may be left out."""

    def resized(a):
        return jnp.pad(a[:, :, :C], ((0, 0), (0, 0), (0, max(0, C - a.shape[2])), (0, 0)))

    return KeyValues(resized(caches.K), resized(caches.V))


@functools.partial(jax.jit, static_argnames=("C",))
def _of_row(state: State, r: Int[Array, ""], *, C: int) -> KeyValues:
    """Return the keys and values of one sequence, ``[L, H, C, d]``, each token in the slot of its position."""
    slots = jnp.minimum(state.first[r] - state.lengths[r] + 1 + jnp.arange(C), state.tokens.shape[1] - 1)
    of_row = [cache.of_sequences(jnp.asarray(r)[None], len(state.tokens)) for cache in state.caches]
    K, V = (jnp.stack([a[:, slots] for a in of_layers]) for of_layers in zip(*of_row, strict=True))
    return KeyValues(K, V)


@jax.jit
def _beside(rows: tuple[KeyValues, ...], x: Int[Array, "B P"], lengths: Int[Array, "B"]) -> State:
    """Return the state of prompts whose keys and values are known, as `reading.prefill` returns it."""
    (L, _, C, _), P = rows[0].K.shape, x.shape[1]
    tokens = states.prompt_tokens(lengths, P, C)

    def of_layer(l, name):
        a = jnp.stack([getattr(row, name)[l] for row in rows], axis=1)
        return a.reshape(-1, *a.shape[2:])

    caches = tuple(KeyValues(of_layer(l, "K"), of_layer(l, "V")).arranged(tokens) for l in range(L))
    return states.begun(x, lengths, caches, C=C)
