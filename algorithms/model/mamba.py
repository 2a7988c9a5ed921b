"""Mamba-2: line 6 of Algorithm 10 as a state space model, whose state does not grow with the sequence."""

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from algorithms.machinery.arrays import accumulation_dtype, as_columns, of_all_heads, scaled
from algorithms.machinery.contract import array
from algorithms.machinery.record import Range
from algorithms.model.norm import RMSNorm
from algorithms.model.recurrence import Rates, Recurrence, softplus_rates
from algorithms.ops.linear import linear


class Mamba2Params(NamedTuple):
    """The projections of every head, the taps and biases of its convolution, its decay, D, and norm and projection.

    W_q, W_k and W_v come before the convolution with C_q, C_k and C_v: they are those of C, B and x in Mamba-2's paper.
    W_z is that of the gate, and W_a, b_a and a are those of the decay.
    """

    W_q: Array
    W_k: Array
    W_v: Array
    C_q: Array
    C_k: Array
    C_v: Array
    b_q: Array
    b_k: Array
    b_v: Array
    W_z: Array
    W_a: Array
    b_a: Array
    a: Array
    D: Array
    gamma: Array | None
    W_out: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mamba2(Recurrence):
    """``W_out norm((O + D ⊙ V) ⊙ silu(W_z X))``, where ``o_t = S_tᵀ q_t`` in every head, and its state is

        S_t = e^{−Δ_t e^a} S_{t−1} + Δ_t k_t v_tᵀ

    with ``Δ_t = max(softplus(W_a x_t + b_a), Δ_min)``. The norm is over the heads that share keys, together. The rest
    is that of `Recurrence`, but the norm may be None.

    Attributes:
        delta_min: Δ_min, the smallest Δ, as in Nemotron-H; 0: any.
        factors: factors of W_q X, W_k X, W_v X, W_a X and W_z X, as in Falcon-H1.

    Source: Dao and Gu 2024, "Transformers are SSMs", §6 and §7, with the layer of Granite 4.
    """

    norm: RMSNorm | None = RMSNorm(epsilon=1e-6)
    delta_min: Annotated[float, Range("a number >= 0", lambda delta: delta >= 0)] = 0.0
    factors: tuple[float, ...] = (1.0,) * 5

    name: ClassVar[str] = "mamba"
    divided: ClassVar[tuple[str, ...]] = ("N_mamba", "N_mamba_keys", "N_mamba*d_mamba_v")
    heads: ClassVar[tuple[str, ...]] = ("N_mamba", "N_mamba_keys")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.factors) != 5:
            self.refuse("factors", "five numbers")

    def shapes(self) -> Mamba2Params:
        """The shapes of its parameters."""
        b = array("N_mamba_keys d_mamba_k")
        return Mamba2Params(
            **self._shared_shapes(),
            b_q=b,
            b_k=b,
            b_v=array("N_mamba d_mamba_v"),
            D=array("N_mamba", start=1.0),
            gamma=self.norm and self.norm.shapes("N_mamba*d_mamba_v").gamma,
        )

    def projected(self, X: Any, W: Mamba2Params) -> list[Any]:
        """Queries, keys and values times their factors."""
        return [scaled(Y, c) for Y, c in zip(super().projected(X, W), self.factors[:3], strict=True)]

    def rates(self, Q: Any, K: Any, V: Any, X: Any, W: Mamba2Params) -> Rates:
        """Values times Δ, and α."""
        dtype = accumulation_dtype(X.dtype)
        Q, K, V = (Y.astype(dtype) for Y in (Q, K, V))
        delta, log_alpha = softplus_rates(scaled(jnp.tensordot(W.W_a, X, 1), self.factors[3]), W, dtype, self.delta_min)
        return Rates(self._of_every_head(Q), self._of_every_head(K), delta[:, None] * V, log_alpha[:, None], None)

    def output(self, O: Any, V: Any, X: Any, W: Mamba2Params) -> Any:
        """``W_out norm((O + D ⊙ V) ⊙ silu(W_z X))``."""
        D = W.D.reshape(-1, *(1,) * (V.ndim - 1)).astype(O.dtype)
        gate = jax.nn.silu(scaled(linear(W.W_z, X), self.factors[4]))
        Y = (O + D * V.astype(O.dtype)).astype(X.dtype) * gate
        Y = Y.reshape(self.n_keys, self.n // self.n_keys * self.d_value, *Y.shape[2:])
        if self.norm is None:
            return linear(W.W_out, of_all_heads(Y))
        Y = of_all_heads(self.norm.but(gamma=False).of_heads(Y, None))
        if W.gamma is not None:
            Y = Y * as_columns(W.gamma + self.norm.offset, Y)
        return linear(W.W_out, Y)
