"""A short convolution between two gates: line 6 of Algorithm 10 without attention, for the tokens right before."""

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import as_columns
from algorithms.machinery.contract import array
from algorithms.machinery.record import Count, Range
from algorithms.masks import Mask
from algorithms.model.mixer import Mixer, MixerMetadata
from algorithms.model.recurrence import columns_before, convolved, convolved_last, one_batch_axis
from algorithms.ops.linear import linear


class ShortConvolutionParams(NamedTuple):
    """The projections of the rows, of the gate before and of that behind; the taps; and the result's projection."""

    W_x: Array
    b_x: Array | None
    W_i: Array
    b_i: Array | None
    W_y: Array
    b_y: Array | None
    C: Array
    b_c: Array | None
    W_out: Array
    b_out: Array | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortConvolution(Mixer):
    """``W_out ((W_y X + b_y) ⊙ U) + b_out``: U is ``(W_i X + b_i) ⊙ (W_x X + b_x)`` after a convolution with b_c.

    Each row of U[:, t] is a sum, weighted by C, over the last tokens of t's document. A cache has what precedes the
    convolution, for these tokens.

    Attributes:
        d: number of rows.
        width: number of tokens that the convolution reads.
        biases: whether there are biases.

    Source: Liquid AI 2025, "LFM2 Technical Report".
    """

    divided: ClassVar[tuple[str, ...]] = ("d_conv",)

    d: Count
    width: Annotated[int, Range("a number >= 2", lambda n: n >= 2)] = 3
    biases: bool = False

    def sizes(self) -> dict[str, int]:
        """The numbers of rows, and of the tokens that the convolution reads."""
        return {"d_conv": self.d, "d_conv_taps": self.width}

    def shapes(self) -> ShortConvolutionParams:
        """The shapes of its parameters."""
        W, b, C = array("d_conv d_e"), array("d_conv", self.biases), array("d_conv d_conv_taps", role="kernel")
        return ShortConvolutionParams(W, b, W, b, W, b, C, b, array("d_e d_conv"), array("d_e", self.biases))

    def whole(
        self, X: Float[Array, "d_e *batch l"], W: Any, mask: Mask, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l"], Float[Array, "d past B"]]:
        """Whole sequences, and the gated rows of the last of the first ``metadata.cache_length`` tokens of each."""
        X_flat, document = one_batch_axis(X, mask)
        rows = self._gated(X_flat, W)
        length = metadata.length_of(document)
        past = columns_before(rows[None], length, self.width - 1, document)[0]
        return self._written(convolved(rows[None], W.C[None], document)[0], X_flat, W).reshape(X.shape), past

    def step(
        self, x: Float[Array, "d_e B"], W: Any, cache: Array, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e B"], Float[Array, "d past B"]]:
        """One token of each sequence, and the gated rows of the last tokens."""
        taps = jnp.concatenate([cache, self._gated(x, W)[:, None]], axis=1)
        return self._written(convolved_last(taps[None], W.C[None])[0], x, W), taps[:, 1:]

    def begin(self, W: Any, B: int) -> Float[Array, "d past B"]:
        """Nothing before the first token."""
        return jnp.zeros((self.d, self.width - 1, B), W.W_out.dtype)

    def _gated(self, X: Any, W: Any) -> Any:
        return linear(W.W_i, X, W.b_i) * linear(W.W_x, X, W.b_x)

    def _written(self, U: Any, X: Any, W: Any) -> Any:
        U = U if W.b_c is None else U + as_columns(W.b_c, U)
        return linear(W.W_out, linear(W.W_y, X, W.b_y) * U, W.b_out)
