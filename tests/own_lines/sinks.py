"""Sinks beside the softmax: a learned score of each head that takes weight and has no value (Agarwal et al. 2025)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from algorithms import LLAMA, MHAttentionParams
from algorithms.lines import Attention, Rotary, array


class SinkParams(NamedTuple):
    """𝓦 of Algorithm 5, and the sinks."""

    attention: MHAttentionParams
    s: Array  # [H]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sinks(Attention):
    """``A[t_z, t_x] = exp S[t_z, t_x] / (exp s_h + Σ_u exp S[u, t_x])``."""

    loops: ClassVar = "tests.own_lines.loops:sinks"

    def shapes(self):
        return SinkParams(super().shapes(), s=array("H", deviation=1.0))

    def inputs(self, at):
        return super().inputs(at._replace(W=at.W.attention))

    def read(self, Q, K, V, at):
        return super().read(Q, K, V, at._replace(W=at.W.attention))._replace(own=at.W.s)

    def weights(self, S, own):
        S_sink = jnp.concatenate([S, jnp.full((1, S.shape[1]), own)])
        A_sink = jax.nn.softmax(S_sink, axis=0)  # inside
        return A_sink[:-1]


SINKS = LLAMA.but(attention=Sinks(positions=Rotary(), biases=False))
