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

from algorithms import DTransformerConfig, DTransformerParams, Variant, empty_cache, read_tokens
from algorithms.cache import Cache
from algorithms.lines import Attention
from algorithms.model.attention import KeyValueSlots
from algorithms.model.theta import places
from training.generation import prefilling, states
from training.generation.buckets import capacity, to_power_of_two
from training.generation.cache import KeyValues, chosen_sequences, rows_of_parts, whole
from training.generation.layout import bytes_of_token
from training.generation.states import State

LEAST = 16  # tokens of the shortest prefix that is kept or reused
FEW, MANY = 64, 256  # columns read at once: only two numbers, so that few programs are compiled
SMALLEST = 256  # slots of a text that was read in parts


class _Text(NamedTuple):
    """A text, and the keys and values of its tokens."""

    tokens: Int[np.ndarray, "n"]
    cache: Cache

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in jax.tree.leaves(self.cache))


class Parts:
    """A text that is read in parts: the keys and values of its first `n` tokens, in room that grows with them."""

    def __init__(self, generator: Any, text: np.ndarray, known: tuple[int, Cache] | None = None) -> None:
        """Begin a text with what is `known` of it: how many of its tokens, and their keys and values."""
        self._generator, self.text = generator, text
        of_theta = {"dtype": generator.theta.W_e.dtype, "l_max": SMALLEST}
        self.n, self.cache = known or (0, empty_cache(generator.config, **of_theta))

    @property
    def rest(self) -> int:
        """How many tokens are still to be read."""
        return len(self.text) - self.n

    def read(self) -> None:
        """Read the next part, at the end of the context again with what is before it."""
        l_max = self._generator.config.l_max
        at_once = min(FEW if self.rest <= MANY // 2 else MANY, l_max)
        first = min(self.n, l_max - at_once)
        columns = self.text[first : first + at_once]
        x = np.pad(columns, (0, at_once - len(columns))).astype(np.int32)
        cache = _resized(self.cache, C=capacity(max(_room(self.cache), first + at_once, SMALLEST)))
        self.cache = read_more(self._generator.theta, cache, x, jnp.asarray(first, jnp.int32))
        self.n = first + len(columns)

    def state(self, last: int) -> State:
        """Return the state, as `prefilling.prefill` does, of the text and one more token."""
        lengths = np.array([len(self.text) + 1], np.int32)
        C = max(SMALLEST, capacity(len(self.text) + 2))  # few sizes, so that few programs are compiled
        x = np.append(self.text, [last] * (C - 1 - len(self.text))).astype(np.int32)[None]
        return _beside((_resized(self.cache, C=C),), x, lengths, **_of_model(self._generator, 1))


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
        return Prefixes(n * capacity(config.l_max) * bytes_of_token(theta))

    @staticmethod
    def serve(variant: Variant) -> bool:
        """Return whether all layers keep something of each token, and not a state that cannot be cut at a prefix."""
        return all(isinstance(line, Attention) for line in variant.attentions)

    @property
    def nbytes(self) -> int:
        """How many bytes of keys and values are kept."""
        return sum(text.nbytes for text in self._texts)

    def read(self, generator: Any, x: np.ndarray, lengths: np.ndarray, *, C: int) -> State:
        """Read prompts like `prefilling.prefill`, but reuse the prefixes that they share with texts read before."""
        if not Prefixes.serve(generator.config.variant):
            kinds = dict.fromkeys(type(line).__name__ for line in generator.config.variant.attentions)
            raise ValueError(
                f"prefixes: expected a model whose layers keep keys and values, got one with {' and '.join(kinds)}, "
                "whose state cannot be cut at a prefix; leave prefixes out"
            )
        texts = [row[:length] for row, length in zip(x, lengths, strict=True)]
        begun = [self.begin(text[:-1]) for text in texts]
        new = [r for r, one in enumerate(begun) if one is None]
        if len(new) == len(texts):
            state = prefilling.prefill(generator.apart, x, lengths, C=C)
            for r, text in enumerate(texts):
                self.keep(state, r, text[:-1], generator.config.variant)
            return state
        rows: list[Cache] = []
        first: dict[int, Cache] = {}
        if new:
            new = to_power_of_two(new)
            state = prefilling.prefill(generator.apart, x[new], lengths[new], C=C)
            first = {
                r: _of_row(state, i, C=C, variant=generator.config.variant) for i, r in reversed(list(enumerate(new)))
            }
        for r, (text, one) in enumerate(zip(texts, begun, strict=True)):
            rows.append(first[r] if one is None else self._read_on(generator, text[:-1], one))
            self.add(text[:-1], rows[r])
        C = max(C, *map(_room, rows))
        return _beside(tuple(_resized(row, C=C) for row in rows), x, lengths, **_of_model(generator, len(x)))

    def keep(self, state: State, r: int, text: np.ndarray, variant: Variant) -> None:
        """Keep the keys and values of sequence r, those of the tokens of a text."""
        if len(text) >= LEAST:
            self.add(text, _of_row(state, r, C=state.tokens.shape[1], variant=variant))

    def begin(self, text: np.ndarray) -> tuple[int, Cache] | None:
        """Return the longest known prefix of a text: its length, and keys and values."""
        with self._lock:
            shared = [_shared(text, other.tokens) for other in self._texts]
            n = max(shared, default=0)
            if n < LEAST:
                return None
            best = self._texts.pop(shared.index(n))
            self._texts.append(best)
            self.found += n
            return n, best.cache

    def _read_on(self, generator: Any, text: np.ndarray, known: tuple[int, Cache]) -> Cache:
        """Return the keys and values of a text, given those of its first n tokens."""
        parts = Parts(generator, text, known)
        while parts.rest:
            parts.read()
        return parts.cache

    def add(self, tokens: np.ndarray, cache: Cache) -> None:
        """Keep a text, and drop the texts that are prefixes of it."""
        n = len(tokens)
        with self._lock:
            if n < LEAST or any(_shared(tokens, other.tokens) == n for other in self._texts):
                return
            text = _Text(np.array(tokens), _resized(cache, C=capacity(n)))
            if text.nbytes > self.most:
                return
            self._texts = [other for other in self._texts if _shared(tokens, other.tokens) < len(other.tokens)]
            self._texts.append(text)
            while self.nbytes > self.most:
                del self._texts[0]


def _room(cache: Cache) -> int:
    """Return for how many tokens a cache has slots."""
    return jax.tree.leaves(cache)[0].shape[-1]


def _of_model(generator: Any, B: int) -> dict[str, Any]:
    return {"n": rows_of_parts(generator.theta, B), "variant": generator.config.variant}


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
def read_more(theta: DTransformerParams, cache: Cache, x: Int[Array, "M"], n: Int[Array, ""]) -> Cache:
    """Read M more tokens x of one text behind its first n. Later slots, such as those of padding, do not matter."""
    return read_tokens(theta, cache, x, n)[1]


def _resized(cache: Cache, *, C: int) -> Cache:
    """Return a cache with C slots, unless it has as many: padded, or cut at the end."""
    return cache if _room(cache) == C else _with_slots(cache, C=C)


@functools.partial(jax.jit, static_argnames=("C",))
def _with_slots(cache: Cache, *, C: int) -> Cache:
    def resized(a):
        return jnp.pad(a[..., :C], ((0, 0),) * (a.ndim - 1) + ((0, max(0, C - a.shape[-1])),))

    return jax.tree.map(resized, cache)


@functools.partial(jax.jit, static_argnames=("C", "variant"))
def _of_row(state: State, r: Int[Array, ""], *, C: int, variant: Variant) -> Cache:
    """Return the keys and values of sequence r, with C slots."""
    slots = jnp.minimum(state.first[r] - state.lengths[r] + 1 + jnp.arange(C), state.tokens.shape[1] - 1)
    of_row: Any = (chosen_sequences(cache, jnp.asarray(r)[None], len(state.tokens)) for cache in state.caches)
    columns = [KeyValueSlots(*(a[:, slots].swapaxes(1, 2) for a in whole(cache))) for cache in of_row]
    at = places(variant, len(columns))
    stacks = [[c for c, (i, _) in zip(columns, at, strict=True) if i == stack] for stack in range(max(at)[0] + 1)]
    return Cache(tuple(jax.tree.map(lambda *a: jnp.stack(a), *of_stack) for of_stack in stacks))


@functools.partial(jax.jit, static_argnames=("n", "variant"))
def _beside(
    rows: tuple[Cache, ...], x: Int[Array, "B P"], lengths: Int[Array, "B"], *, n: int | None, variant: Variant
) -> State:
    """Return the state of prompts, as `prefilling.prefill` does, from their keys and values."""
    C, P = _room(rows[0]), x.shape[1]
    tokens = states.prompt_tokens(lengths, P, C)

    def of_layer(stack, row):
        def beside(*of_texts):  # [layers, H, d, C] of each
            a = jnp.stack([a[row].swapaxes(1, 2) for a in of_texts], axis=1)
            return a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])

        return KeyValues(*map(beside, *(cache.stacks[stack] for cache in rows)))

    L = sum(len(stack.K) for stack in rows[0].stacks)
    caches = tuple(of_layer(*at).arranged(tokens) for at in places(variant, L))
    return states.begun(x, lengths, caches, C=C, n=n)
