"""The real-gated linear recurrent unit: line 6 of Algorithm 10 as a recurrence of single numbers."""

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from algorithms.machinery.arrays import accumulation_dtype, as_columns, of_all_heads
from algorithms.machinery.contract import array
from algorithms.machinery.options import as_printed
from algorithms.machinery.record import Count, Range
from algorithms.masks import Mask
from algorithms.model.mixer import Mixer, MixerMetadata
from algorithms.model.recurrence import columns_before, convolved, convolved_last, one_batch_axis
from algorithms.ops.activation import gelu_tanh
from algorithms.ops.linear import linear

SHARPNESS = 8.0
"""c, the paper's: the factor of log α."""
STEEPEST = 1000.0
"""The largest derivative of √(1 − α²)."""


class RGLRUParams(NamedTuple):
    """The projections of the rows and of the gate, the convolution, the two gates of each group, and the result's.

    W_i and b_i are those of the input gate, W_r, b_r and a those of the decay.
    """

    W_x: Array
    b_x: Array
    W_y: Array
    b_y: Array
    C: Array
    b_c: Array
    W_i: Array
    b_i: Array
    W_r: Array
    b_r: Array
    a: Array
    W_out: Array
    b_out: Array


class State(NamedTuple):
    """The recurrent state of B sequences: h, whether a token precedes, and the convolution's last columns."""

    h: Float[Array, "N d B"]
    begun: Bool[Array, "B"]
    past: Float[Array, "N d past B"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RGLRU(Mixer):
    """``W_out (h ⊙ GELU(W_y X + b_y)) + b_out``, where every row of h is a recurrence over the tokens:

        h_t = α_t h_{t−1} + √(1 − α_t²) i_t u_t,   and i_t u_t at a document's first token

    with u the columns W_x X + b_x after a convolution with a bias over the last tokens, ``i = σ(W_i u + b_i)`` and
    ``α = exp(−8 σ(W_r u + b_r) softplus(a))``, in which W_i and W_r mix only rows of the same group. Whole sequences
    are computed by an associative scan, ``"paper"`` token by token. The derivative of the root is at most 1,000, as in
    transformers, since that of √0 is infinite.

    Attributes:
        n: number of groups.
        d: rows of a group.
        width: number of tokens that the convolution reads.

    Source: De et al. 2024, "Griffin", equations (1) to (4) and §2.3, with the layer of RecurrentGemma.
    """

    divided: ClassVar[tuple[str, ...]] = ("N_lru", "N_lru*d_lru")
    heads: ClassVar[tuple[str, ...]] = ("N_lru",)

    n: Count
    d: Count
    width: Annotated[int, Range("a number >= 2", lambda n: n >= 2)] = 4

    def sizes(self) -> dict[str, int]:
        """The number of groups and their rows, and of the tokens that the convolution reads."""
        return {"N_lru": self.n, "d_lru": self.d, "d_lru_taps": self.width}

    def shapes(self) -> RGLRUParams:
        """The shapes of its parameters."""
        rows, mixed = "N_lru d_lru", array("N_lru d_lru d_lru")
        W, b = array(f"{rows} d_e"), array(rows)
        C = array(f"{rows} d_lru_taps", role="kernel")
        return RGLRUParams(W, b, W, b, C, b, mixed, b, mixed, b, b, array("d_e N_lru*d_lru"), array("d_e"))

    def whole(
        self, X: Float[Array, "d_e *batch l"], W: RGLRUParams, mask: Mask, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l"], State]:
        """Whole sequences, and the state after the first ``metadata.cache_length`` tokens of each."""
        X_flat, document = one_batch_axis(X, mask)
        begins = jnp.pad(document[:, 1:] != document[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        rows = linear(W.W_x, X_flat, W.b_x)
        log_alpha, v = self._read(convolved(rows, W.C, document), begins, W)
        alpha = jnp.where(begins, 0, jnp.exp(log_alpha))
        h = (_by_tokens if as_printed() else _at_once)(alpha, v)
        length = metadata.length_of(document)
        last = jnp.take_along_axis(h, jnp.maximum(length - 1, 0)[None, None, :, None], axis=3)[..., 0]
        state = State(
            jnp.where(length > 0, last, 0), length > 0, columns_before(rows, length, self.width - 1, document)
        )
        return self._written(h, X_flat, W).reshape(X.shape), state

    def step(
        self, x: Float[Array, "d_e B"], W: RGLRUParams, cache: State, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e B"], State]:
        """One token of each sequence, and the state after it."""
        taps = jnp.concatenate([cache.past, linear(W.W_x, x, W.b_x)[:, :, None]], axis=2)
        log_alpha, v = self._read(convolved_last(taps, W.C), ~cache.begun, W)
        h = jnp.exp(log_alpha) * cache.h + v
        return self._written(h, x, W), State(h, jnp.ones_like(cache.begun), taps[:, :, 1:])

    def begin(self, W: RGLRUParams, B: int) -> State:
        """Rows of 0, with nothing before the first token."""
        dtype = W.W_out.dtype
        h, past = jnp.zeros((self.n, self.d, B), accumulation_dtype(dtype)), (self.n, self.d, self.width - 1, B)
        return State(h, jnp.zeros(B, bool), jnp.zeros(past, dtype))

    def _read(self, u: Any, begins: Any, W: RGLRUParams) -> tuple[Any, Any]:
        dtype = accumulation_dtype(u.dtype)
        u = (u + as_columns(W.b_c, u)).astype(dtype)
        gate_i, gate_r = (
            jax.nn.sigmoid(jnp.einsum("hij,hj...->hi...", M.astype(dtype), u) + as_columns(b.astype(dtype), u))
            for M, b in ((W.W_i, W.b_i), (W.W_r, W.b_r))
        )
        log_alpha = -SHARPNESS * gate_r * jax.nn.softplus(as_columns(W.a.astype(dtype), u))
        return log_alpha, jnp.where(begins, 1, _root(-jnp.expm1(2 * log_alpha))) * gate_i * u

    def _written(self, h: Any, X: Any, W: RGLRUParams) -> Any:
        gate = gelu_tanh(linear(W.W_y, X, W.b_y))
        Y = h.astype(X.dtype) * gate
        return linear(W.W_out, of_all_heads(Y), W.b_out)


def _root(x: Any) -> Any:
    """The square root, whose derivative is at most `STEEPEST`: by no rule of its own, which a scan would forget."""
    least = (2 * STEEPEST) ** -2
    fixed = jax.lax.stop_gradient(x)
    return jnp.where(x < least, jnp.sqrt(fixed) + STEEPEST * (x - fixed), jnp.sqrt(jnp.maximum(x, least)))


def _by_tokens(alpha: Any, v: Any) -> Any:
    def token(h, of_token):
        alpha, v = of_token
        h = alpha * h + v
        return h, h

    _, h = jax.lax.scan(token, jnp.zeros_like(v[..., 0]), (jnp.moveaxis(alpha, -1, 0), jnp.moveaxis(v, -1, 0)))
    return jnp.moveaxis(h, 0, -1)


def _at_once(alpha: Any, v: Any) -> Any:
    """The same by an associative scan: two tokens after another multiply by α₁α₂ and add α₂v₁ + v₂."""

    def together(one, other):
        return one[0] * other[0], other[0] * one[1] + other[1]

    return jax.lax.associative_scan(together, (alpha, v), axis=-1)[1]
