"""The gated delta rule: line 6 of Algorithm 10 as a recurrence, whose state does not grow with the sequence."""

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.contract import array
from algorithms.machinery.record import Range
from algorithms.masks import Mask, StructuralMask
from algorithms.model.mixer import Given, Mixer
from algorithms.model.norm import RMSNorm
from algorithms.ops.linear import linear

Count = Annotated[int, Range("a number >= 1", lambda n: n >= 1)]

CHUNK = 64
"""How many tokens are computed together."""
EPSILON = 1e-6
"""What is added to the square of the length of queries and keys."""


class GatedDeltaParams(NamedTuple):
    """The projections of every head, the taps of its convolution, its decay, and the norm and projection of the result.

    W_q, W_k and W_v come before the convolution with C_q, C_k and C_v, W_z is that of the gate, W_b that of β, and W_a,
    b_a and a those of the decay.
    """

    W_q: Array
    W_k: Array
    W_v: Array
    C_q: Array
    C_k: Array
    C_v: Array
    W_z: Array
    W_b: Array
    W_a: Array
    b_a: Array
    a: Array
    gamma: Array
    W_out: Array


class GatedDeltaState(NamedTuple):
    """What is kept of B sequences: the state of every head, and the columns that the next convolution reads."""

    S: Float[Array, "H d_k d_v B"]
    q: Float[Array, "H_k d_k past B"]
    k: Float[Array, "H_k d_k past B"]
    v: Float[Array, "H d_v past B"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDelta(Mixer):
    """``W_out (norm(O) ⊙ silu(W_z X))``, where ``o_t = S_tᵀ q_t`` in every head, and its state is

        S_t = α_t S_{t−1} + k_t β_t (v_t − α_t S_{t−1}ᵀ k_t)ᵀ

    with ``α_t = exp(−e^a softplus(W_a x_t + b_a))`` and ``β_t = σ(W_b x_t)``. Queries, keys and values are W_q X, W_k X
    and W_v X after a convolution over the last tokens and SiLU; queries and keys have length 1, and queries are divided
    by √d_k. The state is 0 before the first token of a document. Whole sequences are computed by chunks of tokens,
    ``"paper"`` token by token.

    Attributes:
        n: number of heads.
        n_keys: number of heads of queries and keys, each shared by n/n_keys heads of values.
        d_key: rows of a query and a key.
        d_value: rows of a value.
        width: number of tokens that the convolution reads.
        norm: of each head's result.

    Source: Yang et al. 2025, "Gated Delta Networks", equation (10) and §3.3, with the layer of Qwen3-Next.
    """

    n: Count
    n_keys: Count
    d_key: Count
    d_value: Count
    width: Annotated[int, Range("a number >= 2", lambda n: n >= 2)] = 4
    norm: RMSNorm = RMSNorm(epsilon=1e-6)

    divided: ClassVar[tuple[str, ...]] = ("N_delta", "N_delta_keys", "N_delta*d_delta_v")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.n % self.n_keys:
            self.refuse("n_keys", f"a divisor of n = {self.n}")

    def shapes(self) -> GatedDeltaParams:
        """The shapes of its parameters."""
        keys, values = "N_delta_keys d_delta_k", "N_delta d_delta_v"
        of_heads = {"W_b": array("N_delta d_e"), "W_a": array("N_delta d_e"), "W_z": array(f"{values} d_e")}
        return GatedDeltaParams(
            W_q=array(f"{keys} d_e"),
            W_k=array(f"{keys} d_e"),
            W_v=array(f"{values} d_e"),
            C_q=array(f"{keys} d_taps", role="kernel"),
            C_k=array(f"{keys} d_taps", role="kernel"),
            C_v=array(f"{values} d_taps", role="kernel"),
            **of_heads,
            b_a=array("N_delta", start=1.0),
            a=array("N_delta"),
            gamma=self.norm.shapes("d_delta_v").gamma,
            W_out=array("d_e N_delta*d_delta_v"),
        )

    def sizes(self) -> dict[str, int]:
        """The numbers of heads and their rows, and of the tokens that the convolution reads."""
        found = {"N_delta": self.n, "N_delta_keys": self.n_keys, "d_delta_k": self.d_key, "d_delta_v": self.d_value}
        return {**found, "d_taps": self.width}

    def whole(
        self, X: Float[Array, "d_e *batch l"], W: GatedDeltaParams, mask: Mask, given: Given, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l"], GatedDeltaState]:
        """Whole sequences, and the state after the first ``given.until`` tokens of each."""
        X_flat = X.reshape(len(X), -1, X.shape[-1])
        B, l = X_flat.shape[1:]
        document = _documents(mask, B, l)
        before = [linear(M, X_flat, None, given.implementation) for M in (W.W_q, W.W_k, W.W_v)]
        taps = [_taps(Y, self.width, document) for Y in before]
        Q, K, V = (jax.nn.silu(_convolved(Y, C)) for Y, C in zip(taps, (W.C_q, W.C_k, W.C_v), strict=True))
        Q, K, V, log_alpha, beta = self._of_heads(Q, K, V, X_flat, W)
        rule = _by_tokens if given.implementation == "paper" else _in_chunks
        O, S = rule(Q, K, V, log_alpha, beta, document)
        until = jnp.broadcast_to(l if given.until is None else given.until, (B,))
        if given.until is not None:
            is_read = (jnp.arange(l)[None] < until[:, None])[None]
            _, S = rule(Q, K, V, jnp.where(is_read, log_alpha, 0), jnp.where(is_read, beta, 0), document)
        past = [_before(Y, until, self.width - 1, document) for Y in before]
        return self._output(O, X_flat, W, given).reshape(X.shape), GatedDeltaState(S, *past)

    def step(
        self, x: Float[Array, "d_e B"], W: GatedDeltaParams, kept: GatedDeltaState, given: Given, context: Any = None
    ) -> tuple[Float[Array, "d_e B"], GatedDeltaState]:
        """One token of each sequence, and the state after it."""
        columns = [linear(M, x, None, given.implementation) for M in (W.W_q, W.W_k, W.W_v)]
        taps = [jnp.concatenate([p, y[:, :, None]], axis=2) for p, y in zip(kept[1:], columns, strict=True)]
        C = (W.C_q, W.C_k, W.C_v)
        Q, K, V = (jax.nn.silu(jnp.einsum("hdtb,hdt->hdb", y, c)) for y, c in zip(taps, C, strict=True))
        Q, K, V, log_alpha, beta = self._of_heads(Q, K, V, x, W)
        S, o = _one_token(kept.S, Q, K, V, log_alpha, beta)
        return self._output(o, x, W, given), GatedDeltaState(S, *(y[:, :, 1:] for y in taps))

    def begin(self, W: GatedDeltaParams, B: int) -> GatedDeltaState:
        """States of 0, with nothing before the first token."""
        dtype, past = W.W_out.dtype, self.width - 1
        keys, values = (self.n_keys, self.d_key, past, B), (self.n, self.d_value, past, B)
        S = jnp.zeros((self.n, self.d_key, self.d_value, B), accumulation_dtype(dtype))
        return GatedDeltaState(S, jnp.zeros(keys, dtype), jnp.zeros(keys, dtype), jnp.zeros(values, dtype))

    def _of_heads(self, Q: Any, K: Any, V: Any, X: Any, W: GatedDeltaParams) -> tuple[Array, ...]:
        """Queries, keys and values of every head, the logarithms of its α, and its β, in float32 at least."""
        dtype = accumulation_dtype(X.dtype)
        Q, K, V = (Y.astype(dtype) for Y in (Q, K, V))
        Q, K = (Y * jax.lax.rsqrt(jnp.square(Y).sum(axis=1, keepdims=True) + EPSILON) for Y in (Q, K))
        Q, K = (jnp.repeat(Y, self.n // self.n_keys, axis=0) for Y in (Q * self.d_key**-0.5, K))
        rate, step = (jnp.tensordot(M, X, 1).astype(dtype) for M in (W.W_a, W.W_b))
        b_a, a = (b.astype(dtype).reshape(-1, *(1,) * (X.ndim - 1)) for b in (W.b_a, W.a))
        return Q, K, V, -jnp.exp(a) * jax.nn.softplus(rate + b_a), jax.nn.sigmoid(step)

    def _output(self, O: Any, X: Any, W: GatedDeltaParams, given: Given) -> Any:
        """``W_out (norm(O) ⊙ silu(W_z X))``."""
        O = self.norm.of_heads(O.astype(X.dtype), W.gamma, given.implementation)
        O = O * jax.nn.silu(linear(W.W_z, X, None, given.implementation))
        return linear(W.W_out, O.reshape(-1, *O.shape[2:]), None, given.implementation)


def _documents(mask: Mask, B: int, l: int) -> Array:
    """The number of each token's document, counted by where they begin. Raises ValueError for masks of other kinds."""
    rules = {"unidirectional": True, "width": None, "prefix": None, "blocks_z": None, "first": None}
    if not isinstance(mask, StructuralMask) or any(getattr(mask, name) is not value for name, value in rules.items()):
        raise ValueError(
            "mask: expected UNIDIRECTIONAL, with padding() and documents() if there are any, since the delta rule "
            "reads tokens in their order, got another; leave it out"
        )
    numbers = jnp.zeros((B, l), int) if mask.documents_z is None else jnp.broadcast_to(mask.documents_z, (B, l))
    return jnp.cumsum(jnp.pad(numbers[:, 1:] != numbers[:, :-1], ((0, 0), (1, 0))), axis=1)


def _taps(Y: Float[Array, "H d B l"], width: int, document: Array) -> Float[Array, "H d width B l"]:
    """The column itself and the width − 1 before it, the earliest first; 0 in place of those of other documents."""
    l = Y.shape[-1]
    padded = jnp.pad(Y, ((0, 0),) * 3 + ((width - 1, 0),))
    numbers = jnp.pad(document, ((0, 0), (width - 1, 0)), constant_values=-1)
    each = [jnp.where((numbers[:, i : i + l] == document)[None, None], padded[..., i : i + l], 0) for i in range(width)]
    return jnp.stack(each, axis=2)


def _convolved(taps: Float[Array, "H d width B l"], C: Float[Array, "H d width"]) -> Float[Array, "H d B l"]:
    return jnp.einsum("hdtbl,hdt->hdbl", taps, C)


def _before(Y: Float[Array, "H d B l"], until: Array, n: int, document: Array) -> Float[Array, "H d n B"]:
    """The last n of the first ``until`` columns of each sequence; 0 where there are none in the last one's document."""
    at = until[:, None] - n + jnp.arange(n)[None]
    l = Y.shape[-1]
    found = jnp.take_along_axis(Y, jnp.clip(at, 0, l - 1)[None, None], axis=3)
    number, last = (jnp.take_along_axis(document, jnp.clip(t, 0, l - 1), axis=1) for t in (at, until[:, None] - 1))
    return jnp.swapaxes(jnp.where(((at >= 0) & (number == last))[None, None], found, 0), 2, 3)


def _one_token(S: Any, q: Any, k: Any, v: Any, log_alpha: Any, beta: Any) -> tuple[Any, Any]:
    """The state after a token of each sequence, and what it gives."""
    S = jnp.exp(log_alpha)[:, None, None] * S
    delta = beta[:, None] * (v - jnp.einsum("hkvb,hkb->hvb", S, k))
    S = S + k[:, :, None] * delta[:, None]
    return S, jnp.einsum("hkvb,hkb->hvb", S, q)


def _begun(K: Any, V: Any) -> Any:
    return jnp.zeros((len(K), K.shape[1], V.shape[1], K.shape[2]), K.dtype)


def _by_tokens(Q: Any, K: Any, V: Any, log_alpha: Any, beta: Any, document: Any) -> tuple[Any, Any]:
    """The recurrence as printed, token by token."""
    begins = jnp.pad(document[:, 1:] != document[:, :-1], ((0, 0), (1, 0)))
    log_alpha = jnp.where(begins[None], -jnp.inf, log_alpha)

    def token(S, of_token):
        return _one_token(S, *of_token)

    S, O = jax.lax.scan(token, _begun(K, V), tuple(jnp.moveaxis(a, -1, 0) for a in (Q, K, V, log_alpha, beta)))
    return jnp.moveaxis(O, 0, -1), S


def _in_chunks(Q: Any, K: Any, V: Any, log_alpha: Any, beta: Any, document: Any) -> tuple[Any, Any]:
    """The same by chunks: in each, the equations of all its δ_t are solved at once, for the state before it.

    With G_t the sum of log α over the chunk up to t, and only between tokens of one document,

        δ_t + β_t Σ_{s<t} e^{G_t − G_s} (k_tᵀk_s) δ_s = β_t (v_t − e^{G_t} Sᵀk_t)
        o_t = e^{G_t} Sᵀq_t + Σ_{s≤t} e^{G_t − G_s} (q_tᵀk_s) δ_s
    """
    l = Q.shape[-1]
    n = -l % CHUNK if l > CHUNK else 0
    C = min(l, CHUNK)

    def chunks(a):
        mode = "edge" if a is document else "constant"
        a = jnp.pad(a, ((0, 0),) * (a.ndim - 1) + ((0, n),), mode=mode)
        return jnp.moveaxis(a.reshape(*a.shape[:-1], -1, C), -2, 0)

    causal = jnp.tri(C, dtype=bool)[None]

    def chunk(carry, of_chunk):
        S, number = carry
        Q, K, V, log_alpha, beta, document = of_chunk
        G = jnp.cumsum(log_alpha, axis=-1)
        together = causal & (document[:, :, None] == document[:, None])
        decay = jnp.exp(jnp.where(together[None], G[..., :, None] - G[..., None, :], -jnp.inf))
        before = jnp.exp(jnp.where((document == number[:, None])[None], G, -jnp.inf))  # of the state
        A = beta[..., None] * decay * jnp.einsum("hkbt,hkbs->hbts", K, K)
        old = jnp.einsum("hkvb,hkbt->hbtv", S, K) * before[..., None]
        right = beta[..., None] * (jnp.einsum("hvbt->hbtv", V) - old)
        A = jnp.tril(A, -1) + jnp.eye(C, dtype=A.dtype)[None, None]
        delta = jax.scipy.linalg.solve_triangular(A, right, lower=True, unit_diagonal=True)
        O = jnp.einsum("hkvb,hkbt->hvbt", S, Q) * before[:, None]
        O = O + jnp.einsum("hbts,hbsv->hvbt", decay * jnp.einsum("hkbt,hkbs->hbts", Q, K), delta)
        S = before[:, None, None, :, -1] * S + jnp.einsum("hbs,hkbs,hbsv->hkvb", decay[..., -1, :], K, delta)
        return (S, document[:, -1]), O

    carry = _begun(K, V), document[:, 0]
    (S, _), O = jax.lax.scan(chunk, carry, tuple(map(chunks, (Q, K, V, log_alpha, beta, document))))
    return jnp.moveaxis(O, 0, -2).reshape(*V.shape[:-1], -1)[..., :l], S
