"""The gated delta rule, with a decay for each head or for each row: line 6 of Algorithm 10 as a recurrence."""

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from algorithms.machinery.arrays import accumulation_dtype, of_all_heads
from algorithms.machinery.contract import array
from algorithms.machinery.record import Count, Range
from algorithms.model.recurrence import Rates, Recurrence, softplus_rates
from algorithms.ops.linear import linear

EPSILON = 1e-6
"""Added to the squared length of queries and keys."""


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDelta(Recurrence):
    """``W_out (norm(O) ⊙ silu(W_z X))``, where ``o_t = S_tᵀ q_t`` in every head, and its state is

        S_t = α_t S_{t−1} + k_t β_t (v_t − α_t S_{t−1}ᵀ k_t)ᵀ

    with ``α_t = exp(−e^a softplus(W_a x_t + b_a))`` and ``β_t = σ(W_b x_t)``. Queries and keys have length 1, and
    queries are divided by √d_k; the norm is of each head. The rest is that of `Recurrence`.

    Attributes:
        beta_factor: scale of β. At 2, I − βkkᵀ can have the eigenvalue −1, as in OLMo Hybrid.

    Source: Yang et al. 2025, "Gated Delta Networks", equation (10) and §3.3, with the layer of Qwen3-Next.
    """

    beta_factor: Annotated[float, Range("a number in (0, 2]", lambda factor: 0 < factor <= 2)] = 1.0

    name: ClassVar[str] = "delta"
    divided: ClassVar[tuple[str, ...]] = ("N_delta", "N_delta_keys", "N_delta*d_delta_v")
    heads: ClassVar[tuple[str, ...]] = ("N_delta", "N_delta_keys")

    def shapes(self) -> Any:
        """The shapes of its parameters."""
        gamma, W_b = self.norm.shapes("d_delta_v").gamma, array("N_delta d_e")
        return GatedDeltaParams(**self._shared_shapes(), W_b=W_b, gamma=gamma)

    def rates(self, Q: Any, K: Any, V: Any, X: Any, W: Any) -> Rates:
        """Queries and keys of length 1, and α and β."""
        dtype = accumulation_dtype(X.dtype)
        Q, K, V = (Y.astype(dtype) for Y in (Q, K, V))
        Q, K = (Y * jax.lax.rsqrt(jnp.square(Y).sum(axis=1, keepdims=True) + EPSILON) for Y in (Q, K))
        beta = self.beta_factor * jax.nn.sigmoid(jnp.tensordot(W.W_b, X, 1).astype(dtype))
        log_alpha = self.log_alpha(X, W, dtype)
        return Rates(self._of_every_head(Q * self.d_key**-0.5), self._of_every_head(K), V, log_alpha, beta)

    def log_alpha(self, X: Any, W: Any, dtype: Any) -> Any:
        """Log α of every head, or of each of its rows, ``[H, 1 or d_k, *columns]``."""
        return softplus_rates(jnp.tensordot(W.W_a, X, 1), W, dtype)[1][:, None]

    def gate(self, X: Any, W: Any) -> Any:
        """The gate of the heads' outputs."""
        return jax.nn.silu(linear(W.W_z, X))

    def output(self, O: Any, V: Any, X: Any, W: Any) -> Any:
        """``W_out (norm(O) ⊙ gate)``."""
        O = self.norm.of_heads(O.astype(X.dtype), W.gamma)
        O = O * self.gate(X, W)
        return linear(W.W_out, of_all_heads(O))


class KimiDeltaParams(NamedTuple):
    """Those of `GatedDeltaParams`, with two matrices for the decay, W_a2 W_a1, and for the gate, W_z2 W_z1."""

    W_q: Array
    W_k: Array
    W_v: Array
    C_q: Array
    C_k: Array
    C_v: Array
    W_z1: Array
    W_z2: Array
    W_b: Array
    W_a1: Array
    W_a2: Array
    b_a: Array
    a: Array
    gamma: Array
    W_out: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class KimiDelta(GatedDelta):
    """`GatedDelta` in which every row of the state has a decay of its own: ``W_out (norm(O) ⊙ σ(W_z2 W_z1 X))``, where

        S_t = α_t ⊙ S_{t−1} + k_t β_t (v_t − (α_t ⊙ S_{t−1})ᵀ k_t)ᵀ

    with ``α_t = exp(−e^a softplus(W_a2 W_a1 x_t + b_a))`` for each row of k.

    Attributes:
        rank: rows between the two matrices of the decay, and between those of the gate.

    Source: Kimi Team 2025, "Kimi Linear", equations (1) and (10).
    """

    name: ClassVar[str] = "kimi"
    divided: ClassVar[tuple[str, ...]] = ("N_kimi", "N_kimi_keys", "N_kimi*d_kimi_v")
    heads: ClassVar[tuple[str, ...]] = ("N_kimi", "N_kimi_keys")

    rank: Count

    def sizes(self) -> dict[str, int]:
        """Those of the recurrence, and the rank."""
        return {**super().sizes(), "d_kimi_rank": self.rank}

    def shapes(self) -> KimiDeltaParams:
        """The shapes of its parameters."""
        shared, gamma, narrow = self._shared_shapes(), self.norm.shapes("d_kimi_v").gamma, array("d_kimi_rank d_e")
        shared |= {"W_b": shared.pop("W_a"), "W_z1": narrow, "W_z2": array("N_kimi d_kimi_v d_kimi_rank")}
        del shared["W_z"]
        W_a2, b_a = array("N_kimi d_kimi_k d_kimi_rank"), array("N_kimi d_kimi_k", start=1.0)
        return KimiDeltaParams(**shared | {"W_a1": narrow, "W_a2": W_a2, "b_a": b_a, "gamma": gamma})

    def log_alpha(self, X: Any, W: KimiDeltaParams, dtype: Any) -> Any:
        """Log α of each row of every head."""
        return softplus_rates(jnp.tensordot(W.W_a2, jnp.tensordot(W.W_a1, X, 1), 1), W, dtype)[1]

    def gate(self, X: Any, W: KimiDeltaParams) -> Any:
        """``σ(W_z2 W_z1 X)``."""
        return jax.nn.sigmoid(linear(W.W_z2, linear(W.W_z1, X)))
