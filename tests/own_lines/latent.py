"""Multi-head latent attention: keys and values of all heads come from one latent column (DeepSeek-AI 2024)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from algorithms import LLAMA, LayerNormParams
from algorithms.lines import Attention, Read, RMSNorm, Rotary, array


class LatentParams(NamedTuple):
    """The projections of queries, to and from the latents, of the rotated rows, and of the output."""

    W_q: Array
    W_qr: Array
    W_c: Array
    gamma_c: Array
    W_k: Array
    W_kr: Array
    W_v: Array
    W_o: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent(Attention):
    """Keys ``[W_k^h c; R W_kr X]`` and values ``W_v^h c``, where ``c = rms_norm(W_c X)`` is all that a cache keeps."""

    d_c: int
    d_r: int
    loops: ClassVar = "tests.own_lines.loops:latent"

    def shapes(self):
        axes = ("H d_attn d_e", "H d_r d_e", "d_c d_e", "d_c", "H d_attn d_c", "d_r d_e", "H d_mid d_c", "d_e H*d_mid")
        return LatentParams(*(array(a, start=1.0) for a in axes))

    def sizes(self):
        return {"d_c": self.d_c, "d_r": self.d_r}

    def read(self, X, Z, W, *, t_x, t_z, table, implementation):
        norm, gamma_c = RMSNorm(epsilon=1e-6), LayerNormParams(W.gamma_c, None)
        c = norm(jnp.tensordot(W.W_c, Z, 1), gamma_c, implementation)  # inside
        Q = jnp.einsum("hac,ha...->hc...", W.W_k, jnp.tensordot(W.W_q, X, 1))  # (W_k c)ᵀ W_q X = cᵀ W_kᵀ W_q X
        Q_r = self.positions(jnp.tensordot(W.W_qr, X, 1), t_x, implementation)
        K_r = self.positions(jnp.tensordot(W.W_kr, Z, 1)[None], t_z, implementation)
        scale = ((self.d_c + self.d_r) / (W.W_q.shape[1] + self.d_r)) ** 0.5
        return Read(scale * jnp.concatenate([Q, Q_r], 1), jnp.concatenate([c[None], K_r], 1), c[None])

    def write(self, Y, W, implementation):
        Y = jnp.einsum("hmc,hc...->hm...", W.W_v, Y)
        return jnp.tensordot(W.W_o, Y.reshape(-1, *Y.shape[2:]), 1)


LATENT = LLAMA.but(attention=Latent(d_c=8, d_r=4, positions=Rotary()))
