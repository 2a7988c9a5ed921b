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

    positions: Rotary
    lambda_0: float = 0.8
    loops: ClassVar = "tests.own_lines.loops:differential"

    def shapes(self):
        W_q2, W_k2, vectors = array("H d_attn d_e"), array("H_kv d_attn d_e"), array("four d_attn", deviation=0.1)
        return DifferentialParams(super().shapes(), W_q2, W_k2, vectors, array("d_mid", start=1.0))

    def sizes(self):
        return {"four": 4}

    def inputs(self, at):
        return super().inputs(at._replace(W=at.W.attention))

    def read(self, Q, K, V, at):
        first = super().read(Q, K, V, at._replace(W=at.W.attention))
        Q = self.positions(jnp.tensordot(at.W.W_q2, at.X, 1), at.t_x)
        K = self.positions(jnp.tensordot(at.W.W_k2, at.Z, 1), at.t_z)
        both = [(first.Q, Q), (first.K, K), (first.V, first.V)]
        return first._replace(**{name: jnp.concatenate(pair) for name, pair in zip("QKV", both, strict=True)})

    def result(self, Y, at):
        a, b, c, d = at.W.vectors
        weight = jnp.exp(a @ b) - jnp.exp(c @ d) + self.lambda_0
        Y_1, Y_2 = jnp.split(Y, 2)
        D = RMSNorm(epsilon=1e-5).of_heads(Y_1 - weight * Y_2, at.W.gamma)  # inside
        return (1 - self.lambda_0) * D


DIFFERENTIAL = LLAMA.but(attention=Differential(positions=Rotary(), biases=False))
