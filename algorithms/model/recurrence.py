"""Recurrences in place of an attention: line 6 of Algorithm 10 with a state that does not grow with the sequence."""

import dataclasses
import math
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, as_columns
from algorithms.machinery.contract import array
from algorithms.machinery.record import Count, Range
from algorithms.masks import Mask, StructuralMask, runs
from algorithms.model.mixer import Mixer, MixerMetadata
from algorithms.model.norm import RMSNorm
from algorithms.ops.delta_rule import delta_rule, one_token
from algorithms.ops.linear import linear

CHUNK = 64
"""The largest chunk of tokens. A chunk has as many as a key has rows, at least 32, which is fastest on CPUs."""


class State(NamedTuple):
    """The recurrent state of B sequences: of every head, and the columns that the next convolution reads."""

    S: Float[Array, "H d_k d_v B"]
    q: Float[Array, "H_k d_k past B"]
    k: Float[Array, "H_k d_k past B"]
    v: Float[Array, "H d_v past B"]


class Rates(NamedTuple):
    """Inputs of the recurrence for each token and head, in float32 at least."""

    Q: Float[Array, "H d_k *columns"]
    K: Float[Array, "H d_k *columns"]
    V: Float[Array, "H d_v *columns"]
    log_alpha: Float[Array, "H r *columns"]  # r is 1, or d_k if every row of the state has a decay of its own
    beta: Any  # [H, *columns]; None: v_t is added without correction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recurrence(Mixer, abstract=True):
    """``o_t = S_tᵀ q_t`` in every head, where ``S_t = α_t S_{t−1} + k_t δ_tᵀ`` is 0 before a document's first token.

    With β, ``δ_t = β_t (v_t − α_t S_{t−1}ᵀ k_t)``; without, it is v_t. Queries, keys and values are W_q X, W_k X and
    W_v X after a convolution over the last tokens and SiLU. Whole sequences are computed by chunks of tokens,
    ``"paper"`` token by token. A subclass defines ``shapes``, ``rates`` and ``output``.

    Attributes:
        n: number of heads.
        n_keys: number of heads of queries and keys, each shared by n/n_keys heads of values.
        d_key: rows of a query and a key.
        d_value: rows of a value.
        width: number of tokens that the convolution reads.
        norm: of the result.
    """

    name: ClassVar[str]  # in the names of axes

    n: Count
    n_keys: Count
    d_key: Count
    d_value: Count
    width: Annotated[int, Range("a number >= 2", lambda n: n >= 2)] = 4
    norm: RMSNorm = RMSNorm(epsilon=1e-6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n % self.n_keys:
            self.refuse("n_keys", f"a divisor of n = {self.n}")

    def sizes(self) -> dict[str, int]:
        """The numbers and sizes of heads, and the convolution's width."""
        heads, keys, d_k, d_v, taps = self._axes()
        return {heads: self.n, keys: self.n_keys, d_k: self.d_key, d_v: self.d_value, taps: self.width}

    def _axes(self) -> tuple[str, ...]:
        return tuple(axis.format(self.name) for axis in ("N_{}", "N_{}_keys", "d_{}_k", "d_{}_v", "d_{}_taps"))

    def _shared_shapes(self) -> dict[str, Any]:
        heads, of_keys, d_k, d_v, taps = self._axes()
        keys, values = f"{of_keys} {d_k}", f"{heads} {d_v}"
        found = {"W_z": array(f"{values} d_e"), "W_a": array(f"{heads} d_e"), "W_out": array(f"d_e {heads}*{d_v}")}
        for name, rows in {"q": keys, "k": keys, "v": values}.items():
            found |= {f"W_{name}": array(f"{rows} d_e"), f"C_{name}": array(f"{rows} {taps}", role="kernel")}
        return {**found, "b_a": array(heads, start=1.0), "a": array(heads)}

    def projected(self, X: Any, W: Any) -> list[Any]:
        """Queries, keys and values before their convolution."""
        return [linear(M, X) for M in (W.W_q, W.W_k, W.W_v)]

    def rates(self, Q: Any, K: Any, V: Any, X: Any, W: Any) -> Rates:
        """Inputs of the recurrence, from the convolved columns and X."""
        self._lacks("rates", "for the recurrence's inputs")

    def output(self, O: Any, V: Any, X: Any, W: Any) -> Any:
        """The mixer's output, from the recurrence's output, the convolved values and X."""
        self._lacks("output", "for the mixer's output")

    def whole(
        self, X: Float[Array, "d_e *batch l"], W: Any, mask: Mask, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l"], State]:
        """Whole sequences, and the state after the first ``metadata.cache_length`` tokens of each."""
        X_flat, document = one_batch_axis(X, mask)
        before = self.projected(X_flat, W)
        Q, K, V = self._activated([convolved(Y, C, document) for Y, C in zip(before, _taps(W), strict=True)], W)
        rates, of_rule = self.rates(Q, K, V, X_flat, W), document
        length = metadata.length_of(document)
        if metadata.cache_length is not None:
            rates, of_rule = _ended(rates, document, length)
        O, S = delta_rule(*rates, of_rule, min(CHUNK, max(32, self.d_key)))
        past = [columns_before(Y, length, self.width - 1, document) for Y in before]
        return self.output(O, V, X_flat, W).reshape(X.shape), State(S, *past)

    def step(
        self, x: Float[Array, "d_e B"], W: Any, cache: State, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e B"], State]:
        """One token of each sequence, and the state after it."""
        columns = self.projected(x, W)
        taps = [jnp.concatenate([p, y[:, :, None]], axis=2) for p, y in zip(cache[1:], columns, strict=True)]
        Q, K, V = self._activated([convolved_last(Y, C) for Y, C in zip(taps, _taps(W), strict=True)], W)
        S, o = one_token(cache.S, *self.rates(Q, K, V, x, W))
        return self.output(o, V, x, W), State(S, *(y[:, :, 1:] for y in taps))

    def begin(self, W: Any, B: int) -> State:
        """States of 0, with nothing before the first token."""
        dtype, past = W.W_out.dtype, self.width - 1
        keys, values = (self.n_keys, self.d_key, past, B), (self.n, self.d_value, past, B)
        S = jnp.zeros((self.n, self.d_key, self.d_value, B), accumulation_dtype(dtype))
        return State(S, jnp.zeros(keys, dtype), jnp.zeros(keys, dtype), jnp.zeros(values, dtype))

    def _activated(self, each: list[Any], W: Any) -> list[Any]:
        if hasattr(W, "b_q"):
            each = [Y + as_columns(b, Y) for Y, b in zip(each, (W.b_q, W.b_k, W.b_v), strict=True)]
        return list(map(jax.nn.silu, each))

    def _of_every_head(self, Y: Any) -> Any:
        return jnp.repeat(Y, self.n // self.n_keys, axis=0)


def _taps(W: Any) -> tuple[Any, Any, Any]:
    return W.C_q, W.C_k, W.C_v


def softplus_rates(Y: Any, W: Any, dtype: Any, least: float = 0.0) -> tuple[Any, Any]:
    """``Δ = softplus(Y + b_a)``, or the least Δ, and ``log α = −e^a Δ``, of heads, or of each of their rows."""
    b_a, a = (as_columns(b.astype(dtype), Y) for b in (W.b_a, W.a))
    delta = jax.nn.softplus(Y.astype(dtype) + b_a)
    delta = jnp.maximum(delta, least) if least else delta
    return delta, -jnp.exp(a) * delta


def one_batch_axis(X: Float[Array, "d_e *batch l"], mask: Mask) -> tuple[Float[Array, "d_e B l"], Array]:
    """X, and the number of each token's document, from 0, ``[B, l]``. Raises ValueError for masks of other kinds."""
    (d_e, *batch, l), B = X.shape, math.prod(X.shape[1:-1])
    if not are_numbers(l):
        raise ValueError(f"x: expected a number of tokens, since a recurrence goes through chunks of them, got l = {l}")
    rules = {"unidirectional": True, "width": None, "prefix": None, "blocks_z": None, "first": None}
    if not isinstance(mask, StructuralMask) or any(getattr(mask, name) is not value for name, value in rules.items()):
        raise ValueError(
            "mask: expected UNIDIRECTIONAL, with padding() and documents() if there are any, since a recurrence "
            "reads tokens in their order, got another; leave it out"
        )
    if mask.documents_z is None:
        return X.reshape(d_e, B, l), jnp.zeros((B, l), jnp.int32)
    return X.reshape(d_e, B, l), runs(jnp.broadcast_to(mask.documents_z, (*batch, l)).reshape(B, l))


def convolved(Y: Float[Array, "H d B l"], C: Float[Array, "H d width"], document: Array) -> Float[Array, "H d B l"]:
    """Each row's sum, weighted by C, over the column itself and the width − 1 before it in its document."""
    l, width, dtype = Y.shape[-1], C.shape[-1], accumulation_dtype(Y.dtype)
    padded = jnp.pad(Y, ((0, 0),) * 3 + ((width - 1, 0),))
    numbers = jnp.pad(document, ((0, 0), (width - 1, 0)), constant_values=-1)
    total = jnp.zeros(Y.shape, dtype)
    for i in range(width):
        column = jnp.where(numbers[:, i : i + l] == document, padded[..., i : i + l], 0)
        total = total + as_columns(C[..., i], Y).astype(dtype) * column
    return total.astype(Y.dtype)


def convolved_last(taps: Float[Array, "H d width B"], C: Float[Array, "H d width"]) -> Float[Array, "H d B"]:
    """The same of the last column, given all that it reads."""
    return jnp.einsum("hdtb,hdt->hdb", taps, C, preferred_element_type=accumulation_dtype(taps.dtype)).astype(
        taps.dtype
    )


def columns_before(Y: Float[Array, "H d B l"], length: Array, n: int, document: Array) -> Float[Array, "H d n B"]:
    """The last n of the first ``length`` columns of each sequence; 0 where the last one's document has fewer."""
    at = length[:, None] - n + jnp.arange(n)[None]
    l = Y.shape[-1]
    found = jnp.take_along_axis(Y, jnp.clip(at, 0, l - 1)[None, None], axis=3)
    number, last = (jnp.take_along_axis(document, jnp.clip(t, 0, l - 1), axis=1) for t in (at, length[:, None] - 1))
    return jnp.swapaxes(jnp.where(((at >= 0) & (number == last))[None, None], found, 0), 2, 3)


def _ended(rates: Rates, document: Array, length: Array) -> tuple[Rates, Array]:
    """The inputs with the tokens after the first ``length`` neutralized: they leave the state as it is."""
    t = jnp.arange(document.shape[-1])[None]
    is_read = (t < length[:, None])[None]
    K, log_alpha = (jnp.where(is_read[:, None], a, 0) for a in (rates.K, rates.log_alpha))
    document = jnp.take_along_axis(document, jnp.clip(length[:, None] - 1, 0, t), axis=1)
    return rates._replace(K=K, log_alpha=log_alpha), document
