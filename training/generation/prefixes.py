"""The prefix cache: a text that begins like an earlier one is read only from where they differ.

Keys and values of a token depend only on the tokens before it. `Prefixes` keeps those of the texts read most recently,
so a conversation, or many requests with one system message, are read once; and of all tokens, even if every layer has a
window, since texts may differ anywhere. `read_in_parts` reads a text, or the rest of one.
"""

import functools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from algorithms import DTransformerConfig, DTransformerParams, Variant, read_tokens
from algorithms import cache as algorithms_cache
from algorithms.lines import Attention
from algorithms.model.attention import KeyValueSlots
from algorithms.model.theta import places
from training.generation import states
from training.generation.buckets import capacity
from training.generation.cache import KeyValues, RecurrentState, rows_of
from training.generation.layout import bytes_of_token, sizes_of_each_layer
from training.generation.states import State

LEAST = 16  # tokens of the shortest prefix that is kept or reused
FEW, MANY = 64, 256  # columns read at once: only two numbers, so that few programs are compiled
SMALLEST = 256  # slots of a text that was read in parts

Caches = tuple[KeyValues | RecurrentState, ...]
"""The keys and values of one text, of every layer, with that of token t in row t."""


class CachedText(NamedTuple):
    """A text, and the keys and values of its tokens."""

    tokens: Int[np.ndarray, "n"]
    caches: Caches

    @property
    def nbytes(self) -> int:
        """The bytes of its keys and values."""
        return sum(a.nbytes for a in jax.tree.leaves(self.caches))


class Prefixes:
    """The texts used last, as many as fit into `max_bytes`, for several threads; `found` counts reused tokens."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.found = max_bytes, 0
        self._texts: list[CachedText] = []
        self._lock = threading.Lock()

    @staticmethod
    def for_texts(n: int, theta: DTransformerParams, config: DTransformerConfig) -> "Prefixes":
        """Return an empty cache with room for n texts that fill the context."""
        return Prefixes(n * capacity(config.l_max) * bytes_of_token(theta))

    @staticmethod
    def serve(variant: Variant) -> bool:
        """Return whether all layers keep something of each token, and not a state that cannot be cut at a prefix."""
        return all(isinstance(line, Attention) for line in variant.attentions)

    @staticmethod
    def check(variant: Variant) -> None:
        """Raise ValueError unless they `serve` the variant."""
        if not Prefixes.serve(variant):
            kinds = dict.fromkeys(type(line).__name__ for line in variant.attentions)
            raise ValueError(
                f"prefixes: expected a model whose layers keep keys and values, got one with {' and '.join(kinds)}, "
                "whose state cannot be cut at a prefix; leave prefixes out"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values in the cache."""
        return sum(text.nbytes for text in self._texts)

    def keep(self, state: State, r: int, text: np.ndarray) -> None:
        """Keep the keys and values of sequence r, those of the tokens of a text."""
        if (n := len(text)) >= LEAST:
            where = {"B": (len(state.tokens),), "C": capacity(n), "n": None}
            slots, rows = (state.slot,), np.array([r])
            self.add(text, tuple(states.placed_cache((c,), slots, rows, np.int32(n), **where) for c in state.caches))

    def longest(self, text: np.ndarray) -> tuple[int, Caches]:
        """Return the longest known prefix of a text: its length, and keys and values."""
        with self._lock:
            shared = [_shared(text, other.tokens) for other in self._texts]
            n = max(shared, default=0)
            if n < LEAST:
                return 0, ()
            best = self._texts.pop(shared.index(n))
            self._texts.append(best)
            self.found += n
            return n, best.caches

    def add(self, tokens: np.ndarray, caches: Caches) -> None:
        """Keep a text, and drop the texts that are prefixes of it."""
        n = len(tokens)
        with self._lock:
            if n < LEAST or any(_shared(tokens, other.tokens) == n for other in self._texts):
                return
            text = CachedText(np.array(tokens), tuple(cache.resized(capacity(n)) for cache in caches))
            if text.nbytes > self.max_bytes:
                return
            self._texts = [other for other in self._texts if _shared(tokens, other.tokens) < len(other.tokens)]
            self._texts.append(text)
            while self.nbytes > self.max_bytes:
                del self._texts[0]


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the common prefix of two texts."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


def _empty(theta: DTransformerParams, C: int) -> Caches:
    """Return the caches of a text of which nothing has been read."""

    def of_layer(_, H_kv, d_attn, d_mid):
        K, V = (jnp.zeros((H_kv, C, d), theta.W_e.dtype) for d in (d_attn, d_mid))
        return KeyValues(K, V)

    sizes: Any = sizes_of_each_layer(theta)
    return tuple(of_layer(*of_one) if of_one else RecurrentState(()) for of_one in sizes)


@functools.partial(jax.jit, static_argnames=("C",))
def read_more(theta: DTransformerParams, caches: Caches, x: Int[Array, "M"], n: Int[Array, ""], *, C: int) -> Caches:
    """Read M more tokens x of a text, whose first n are read, into C slots of each layer; later slots do not matter."""
    caches = tuple(cache.resized(C) for cache in caches or _empty(theta, C))
    at = places(theta.variant, len(caches))

    def stacked(stack):
        of_stack: list[Any] = [cache for cache, (i, _) in zip(caches, at, strict=True) if i == stack]
        if isinstance(of_stack[0], RecurrentState):
            return ()
        return KeyValueSlots(*(jnp.stack(a).swapaxes(2, 3) for a in ([c.K for c in of_stack], [c.V for c in of_stack])))

    cache = algorithms_cache.Cache(tuple(map(stacked, range(max(at)[0] + 1))))
    found = read_tokens(theta, cache, x, n)[1].stacks
    each = [[a[row].swapaxes(1, 2) for a in found[stack]] for stack, row in at]
    return tuple(KeyValues(*arrays) if arrays else RecurrentState(()) for arrays in each)


def read_in_parts(model: Any, prompt: np.ndarray) -> Iterator[State | None]:
    """Read a prompt, but for its last token: yield None after each part but the last, and then its state."""
    text, l_max, prefixes = prompt[:-1], model.config.l_max, model.prefixes
    n, caches = (0, ()) if prefixes is None else prefixes.longest(text)
    while n < len(text):
        at_once = min(FEW if len(text) - n <= MANY // 2 else MANY, l_max)
        first = min(n, l_max - at_once)  # at the end of the context again with what is before it
        columns = text[first : first + at_once]
        x = np.pad(columns, (0, at_once - len(columns))).astype(np.int32)
        C = capacity(max(rows_of(caches[0]) if caches else 0, first + at_once, SMALLEST))
        caches, n = read_more(model.theta, caches, x, np.int32(first), C=C), first + len(columns)
        if n < len(text):
            yield None
    if prefixes is not None:
        prefixes.add(text, caches)
    tokens = np.zeros((1, capacity(len(prompt))), np.int32)
    tokens[:, len(text)] = prompt[-1]
    slot, length = np.int32(len(text)), np.array([len(prompt)], np.int32)
    yield states.at_slot(slot, caches or _empty(model.theta, SMALLEST), tokens, length)
