"""The prefix cache: a text that begins like an earlier one is read only from where they differ.

Keys and values of a token depend only on the tokens before it. `Prefixes` keeps those of the texts read most recently,
so a conversation, or many requests with one system message, are read once; and of all tokens, even if every layer has a
window, since texts may differ anywhere.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from algorithms import UNIDIRECTIONAL, DTransformerConfig, DTransformerParams
from algorithms.alg10_d_transformer import d_lines
from algorithms.layers import Kept, keeping, lines_of
from training.generation import reading, states
from training.generation.cache import KeyValues, Prefix, bucket, capacity, chosen_sequences, whole
from training.generation.decoding import implementation_of
from training.generation.inputs import to_power_of_two
from training.generation.layout import rows_of_parts, sizes_of_layers
from training.generation.states import State

LEAST = 16  # tokens of the shortest prefix that is kept or reused
FEW, MANY = 64, 256  # columns read at once: only two numbers, so that few programs are compiled


class _Text(NamedTuple):
    """A text, and the keys and values of its tokens, ``[L, H, C, d]`` each."""

    tokens: Int[np.ndarray, "n"]
    caches: KeyValues

    @property
    def nbytes(self) -> int:
        return self.caches.K.nbytes + self.caches.V.nbytes


class Prefixes:
    """The texts used most recently, as many as fit into `most` bytes; `found` is how many tokens were reused."""

    def __init__(self, most: int) -> None:
        self.most, self.found = most, 0
        self._texts: list[_Text] = []

    @staticmethod
    def for_texts(n: int, theta: DTransformerParams, config: DTransformerConfig) -> "Prefixes":
        """Return an empty cache with room for n texts that fill the context."""
        _, H_kv, d_attn, d_mid = sizes_of_layers(theta)
        of_token = config.L * H_kv * (d_attn + d_mid) * theta.W_e.dtype.itemsize
        return Prefixes(n * bucket(config.l_max) * of_token)

    def copy(self) -> "Prefixes":
        """Return an independent copy, with `found` at 0."""
        other = Prefixes(self.most)
        other._texts = list(self._texts)
        return other

    @property
    def nbytes(self) -> int:
        """How many bytes of keys and values are kept."""
        return sum(text.nbytes for text in self._texts)

    def read(self, generator: Any, x: np.ndarray, lengths: np.ndarray, *, C: int) -> State:
        """Read prompts like `reading.prefill`, but reuse the prefixes they share with texts that a `Generator` read."""
        texts = [row[:length] for row, length in zip(x, lengths, strict=True)]
        begun = [self._begin(text) for text in texts]
        new = [r for r, one in enumerate(begun) if one is None]
        if len(new) == len(texts):
            state = reading.prefill(generator.apart, x, lengths, C=C)
            for r in range(len(texts)):
                self.keep(state, r)
            return state
        rows: list[KeyValues] = []
        first: dict[int, KeyValues] = {}
        if new:
            new = to_power_of_two(new)
            state = reading.prefill(generator.apart, x[new], lengths[new], C=C)
            first = {r: _of_row(state, i, C=C) for i, r in reversed(list(enumerate(new)))}
        for r, (text, one) in enumerate(zip(texts, begun, strict=True)):
            rows.append(first[r] if one is None else self._read_on(generator, text[:-1], *one, C=C))
            self._add(text[:-1], rows[r])
        C = max(row.K.shape[2] for row in rows)
        return _beside(tuple(_resized(row, C=C) for row in rows), x, lengths, n=rows_of_parts(generator.theta, len(x)))

    def keep(self, state: State, r: int) -> None:
        """Keep the keys and values of sequence r: its prompt and the tokens generated so far."""
        slot, first, length = int(state.slot), int(state.first[r]), int(state.lengths[r])
        n = length - 1 + slot - first
        of_slots = np.asarray(state.tokens[r])
        tokens = np.concatenate([of_slots[: length - 1], of_slots[first:slot]])
        if n >= LEAST:
            self._add(tokens, _of_row(state, r, C=bucket(n)))

    def _begin(self, text: np.ndarray) -> tuple[int, KeyValues] | None:
        """Return the longest known prefix of a text without its last token: its length, and keys and values."""
        shared = [_shared(text[:-1], other.tokens) for other in self._texts]
        n = max(shared, default=0)
        if n < LEAST:
            return None
        best = self._texts.pop(shared.index(n))
        self._texts.append(best)
        self.found += n
        return n, best.caches

    def _read_on(self, generator: Any, text: np.ndarray, n: int, caches: KeyValues, *, C: int) -> KeyValues:
        """Return the keys and values of a text, given those of its first n tokens."""
        at_once = FEW if len(text) - n <= MANY else MANY
        end = n + -(-(len(text) - n) // at_once) * at_once
        caches = _resized(caches, C=capacity(max(C, end)))
        for start in range(n, end, at_once):
            columns = text[start : start + at_once]
            x = np.pad(columns, (0, at_once - len(columns))).astype(np.int32)
            t = np.minimum(np.arange(start, start + at_once), generator.config.l_max - 1).astype(np.int32)
            caches = read_more(generator.theta, caches, x, t, jnp.asarray(start, jnp.int32))
        return caches

    def _add(self, tokens: np.ndarray, caches: KeyValues) -> None:
        """Keep a text, and drop the texts that are prefixes of it."""
        n = len(tokens)
        if n < LEAST or any(_shared(tokens, other.tokens) == n for other in self._texts):
            return
        text = _Text(np.array(tokens), _resized(caches, C=bucket(n)))
        if text.nbytes > self.most:
            return
        self._texts = [other for other in self._texts if _shared(tokens, other.tokens) < len(other.tokens)]
        self._texts.append(text)
        while self.nbytes > self.most:
            del self._texts[0]


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the common prefix of two texts.

    Example:
        >>> _shared(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
        2
    """
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


@jax.jit
def read_more(
    theta: DTransformerParams, caches: KeyValues, x: Int[Array, "M"], t: Int[Array, "M"], n: Int[Array, ""]
) -> KeyValues:
    """Read M more tokens x of one text, at the positions t, with Algorithm 10, behind its first n; return the caches,
    ``[L, H, C, d]`` each, C ≥ n + M. Padding in later slots is never attended to.
    """
    layers, alone = theta.variant.of_every_layer(theta.layers), theta.variant.but(shared_layers=1)
    theta, L = theta._replace(layers=layers, variant=alone), len(caches.K)
    kept = Kept(Prefix(caches, *(jnp.broadcast_to(a, (L, *a.shape)) for a in (t, n))))
    f = lines_of("Algorithm 10", x, theta, implementation_of(alone), positions=t, kept=kept)
    return keeping(d_lines, f, x, theta, UNIDIRECTIONAL)[1].own.cache


@functools.partial(jax.jit, static_argnames=("C",))
def _resized(caches: KeyValues, *, C: int) -> KeyValues:
    """Return keys and values with C slots: padded, or cut at the end."""
    return KeyValues(*(jnp.pad(a[:, :, :C], ((0, 0), (0, 0), (0, max(0, C - a.shape[2])), (0, 0))) for a in caches))


@functools.partial(jax.jit, static_argnames=("C",))
def _of_row(state: State, r: Int[Array, ""], *, C: int) -> KeyValues:
    """Return the keys and values of sequence r, ``[L, H, C, d]``, each token in the slot of its position."""
    slots = jnp.minimum(state.first[r] - state.lengths[r] + 1 + jnp.arange(C), state.tokens.shape[1] - 1)
    of_row = [whole(chosen_sequences(cache, jnp.asarray(r)[None], len(state.tokens))) for cache in state.caches]
    K, V = (jnp.stack([a[:, slots] for a in of_layers]) for of_layers in zip(*of_row, strict=True))
    return KeyValues(K, V)


@functools.partial(jax.jit, static_argnames=("n",))
def _beside(rows: tuple[KeyValues, ...], x: Int[Array, "B P"], lengths: Int[Array, "B"], *, n: int | None) -> State:
    """Return the state of prompts, as `reading.prefill` does, from their keys and values."""
    (L, _, C, _), P = rows[0].K.shape, x.shape[1]
    tokens = states.prompt_tokens(lengths, P, C)

    def of_layer(l, name):
        a = jnp.stack([getattr(row, name)[l] for row in rows], axis=1)
        return a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])

    caches = tuple(KeyValues(of_layer(l, "K"), of_layer(l, "V")).arranged(tokens) for l in range(L))
    return states.begun(x, lengths, caches, C=C, n=n)
