"""The prefix cache: a text that begins like an earlier one is read only from where they differ.

Keys and values of a token depend only on the tokens before it. `Prefixes` keeps those of the texts read most recently,
so a conversation, or many requests with one system message, are read once; and of all tokens, even if every layer has a
window, since texts may differ anywhere. `Parts` reads a text, or the rest of one, part by part.
"""

import functools
import threading
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
from training.generation.layout import bytes_of_token, rows_of_parts, sizes_of_layers
from training.generation.states import State

LEAST = 16  # tokens of the shortest prefix that is kept or reused
FEW, MANY = 64, 256  # columns read at once: only two numbers, so that few programs are compiled
SMALLEST = 256  # slots of a text that was read in parts


class _Text(NamedTuple):
    """A text, and the keys and values of its tokens, ``[L, H, C, d]`` each."""

    tokens: Int[np.ndarray, "n"]
    caches: KeyValues

    @property
    def nbytes(self) -> int:
        return self.caches.K.nbytes + self.caches.V.nbytes


class Parts:
    """A text that is read in parts: the keys and values of its first `n` tokens, in room that grows with them."""

    def __init__(self, generator: Any, text: np.ndarray, known: tuple[int, KeyValues] | None = None) -> None:
        """Begin a text with what is `known` of it: how many of its tokens, and their keys and values."""
        self._generator, self.text = generator, text
        self.n, self.caches = known or (0, _no_keys(generator.theta, generator.config.L))

    @property
    def rest(self) -> int:
        """How many tokens are still to be read."""
        return len(self.text) - self.n

    def read(self) -> None:
        """Read the next part."""
        at_once = FEW if self.rest <= MANY // 2 else MANY
        columns = self.text[self.n : self.n + at_once]
        x = np.pad(columns, (0, at_once - len(columns))).astype(np.int32)
        t = np.minimum(np.arange(self.n, self.n + at_once), self._generator.config.l_max - 1).astype(np.int32)
        caches = _resized(self.caches, C=capacity(max(self.caches.K.shape[2], self.n + at_once)))
        self.caches = read_more(self._generator.theta, caches, x, t, jnp.asarray(self.n, jnp.int32))
        self.n += len(columns)

    def state(self, last: int) -> State:
        """Return the state, as `reading.prefill` does, of the text and one more token."""
        lengths = np.array([len(self.text) + 1], np.int32)
        C = max(SMALLEST, capacity(len(self.text) + 2))  # few sizes, so that few programs are compiled
        x = np.append(self.text, [last] * (C - 1 - len(self.text))).astype(np.int32)[None]
        return _beside((_resized(self.caches, C=C),), x, lengths, n=rows_of_parts(self._generator.theta, 1))


class Prefixes:
    """The texts used most recently, as many as fit into `most` bytes; `found` is how many tokens were reused. Several
    threads may share it.
    """

    def __init__(self, most: int) -> None:
        self.most, self.found = most, 0
        self._texts: list[_Text] = []
        self._lock = threading.Lock()

    @staticmethod
    def for_texts(n: int, theta: DTransformerParams, config: DTransformerConfig) -> "Prefixes":
        """Return an empty cache with room for n texts that fill the context."""
        return Prefixes(n * bucket(config.l_max) * bytes_of_token(theta, config))

    @property
    def nbytes(self) -> int:
        """How many bytes of keys and values are kept."""
        return sum(text.nbytes for text in self._texts)

    def read(self, generator: Any, x: np.ndarray, lengths: np.ndarray, *, C: int) -> State:
        """Read prompts like `reading.prefill`, but reuse the prefixes they share with texts that a `Generator` read."""
        texts = [row[:length] for row, length in zip(x, lengths, strict=True)]
        begun = [self.begin(text[:-1]) for text in texts]
        new = [r for r, one in enumerate(begun) if one is None]
        if len(new) == len(texts):
            state = reading.prefill(generator.apart, x, lengths, C=C)
            for r, text in enumerate(texts):
                self.keep(state, r, text[:-1])
            return state
        rows: list[KeyValues] = []
        first: dict[int, KeyValues] = {}
        if new:
            new = to_power_of_two(new)
            state = reading.prefill(generator.apart, x[new], lengths[new], C=C)
            first = {r: _of_row(state, i, C=C) for i, r in reversed(list(enumerate(new)))}
        for r, (text, one) in enumerate(zip(texts, begun, strict=True)):
            rows.append(first[r] if one is None else self._read_on(generator, text[:-1], one))
            self.add(text[:-1], rows[r])
        C = max(C, *(row.K.shape[2] for row in rows))
        return _beside(tuple(_resized(row, C=C) for row in rows), x, lengths, n=rows_of_parts(generator.theta, len(x)))

    def keep(self, state: State, r: int, text: np.ndarray) -> None:
        """Keep the keys and values of sequence r, those of the tokens of a text."""
        if len(text) >= LEAST:
            self.add(text, _of_row(state, r, C=capacity(len(text))))

    def begin(self, text: np.ndarray) -> tuple[int, KeyValues] | None:
        """Return the longest known prefix of a text: its length, and keys and values."""
        with self._lock:
            shared = [_shared(text, other.tokens) for other in self._texts]
            n = max(shared, default=0)
            if n < LEAST:
                return None
            best = self._texts.pop(shared.index(n))
            self._texts.append(best)
            self.found += n
            return n, best.caches

    def _read_on(self, generator: Any, text: np.ndarray, known: tuple[int, KeyValues]) -> KeyValues:
        """Return the keys and values of a text, given those of its first n tokens."""
        parts = Parts(generator, text, known)
        while parts.rest:
            parts.read()
        return parts.caches

    def add(self, tokens: np.ndarray, caches: KeyValues) -> None:
        """Keep a text, and drop the texts that are prefixes of it."""
        n = len(tokens)
        with self._lock:
            if n < LEAST or any(_shared(tokens, other.tokens) == n for other in self._texts):
                return
            text = _Text(np.array(tokens), _resized(caches, C=bucket(n)))
            if text.nbytes > self.most:
                return
            self._texts = [other for other in self._texts if _shared(tokens, other.tokens) < len(other.tokens)]
            self._texts.append(text)
            while self.nbytes > self.most:
                del self._texts[0]


def _no_keys(theta: DTransformerParams, L: int) -> KeyValues:
    """Return the keys and values of no tokens."""
    _, H_kv, *sizes = sizes_of_layers(theta)
    return KeyValues(*(jnp.zeros((L, H_kv, 0, d), theta.W_e.dtype) for d in sizes))


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
