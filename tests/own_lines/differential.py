"""Differential attention: the difference of two softmax maps weighs the values (Ye et al. 2025)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from algorithms import LLAMA, MHAttentionParams
from algorithms.lines import Attention, RMSNorm, Rotary, array


class DifferentialParams(NamedTuple):
    """𝓦 of Algorithm 5 with the first map of each head, the second map, and the vectors that λ comes from."""

    attention: MHAttentionParams
    W_q2: Array  # [H, d_attn, d_e]
    W_k2: Array  # [H_kv, d_attn, d_e]
    vectors: Array  # [four, d_attn]
    gamma: Array  # [d_mid]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Differential(Attention):
    """``Y^h = (1 − λ_0) rms_norm(V (softmax(S_1) − λ softmax(S_2)))``, λ = exp(λ_1ᵀλ_2) − exp(λ_3ᵀλ_4) + λ_0."""

    lambda_0: float = 0.8
    loops: ClassVar = "tests.own_lines.loops:differential"

    def shapes(self):
        W_q2, W_k2, vectors = array("H d_attn d_e"), array("H_kv d_attn d_e"), array("four d_attn", deviation=0.1)
        return DifferentialParams(super().shapes(), W_q2, W_k2, vectors, array("d_mid", start=1.0))

    def sizes(self):
        return {"four": 4}

    def read(self, X, Z, W, *, t_x, t_z, **options):
        first = super().read(X, Z, W.attention, t_x=t_x, t_z=t_z, **options)
        Q = self.positions(jnp.tensordot(W.W_q2, X, 1), t_x, options["implementation"])
        K = self.positions(jnp.tensordot(W.W_k2, Z, 1), t_z, options["implementation"])
        both = [(first.Q, Q), (first.K, K), (first.V, first.V)]
        return first._replace(**{name: jnp.concatenate(pair) for name, pair in zip("QKV", both, strict=True)})

    def write(self, Y, W, implementation):
        a, b, c, d = W.vectors
        weight = jnp.exp(a @ b) - jnp.exp(c @ d) + self.lambda_0
        Y_1, Y_2 = jnp.split(Y, 2)
        D = RMSNorm(epsilon=1e-5).of_heads(Y_1 - weight * Y_2, W.gamma, implementation)  # inside
        return super().write((1 - self.lambda_0) * D, W.attention, implementation)


DIFFERENTIAL = LLAMA.but(attention=Differential(positions=Rotary(), biases=False))
