"""Multi-head latent attention: keys and values of all heads come from one latent column (DeepSeek-AI 2024)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from algorithms import LLAMA, AttentionParams, LayerNormParams, MHAttentionParams
from algorithms.lines import QKV, Attention, RMSNorm, Rotary, array


class LatentParams(NamedTuple):
    """The projections of queries, to and from the latents, of the rotated rows, and of the output."""

    W_q: Array
    W_qr: Array
    W_c: Array
    W_k: Array
    W_kr: Array
    W_v: Array
    W_o: Array
    norm_c: LayerNormParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent(Attention):
    """Keys ``[W_k^h c; R W_kr X]`` and values ``W_v^h c``, where ``c = rms_norm(W_c X)`` is all that a cache keeps."""

    positions: Rotary
    d_c: int
    d_r: int
    loops: ClassVar = "tests.own_lines.loops:latent"

    def shapes(self):
        axes = "H d_attn d_e", "H d_r d_e", "d_c d_e", "H d_attn d_c", "d_r d_e", "H d_mid d_c", "d_e H*d_mid"
        return LatentParams(*map(array, axes), norm_c=RMSNorm().shapes("d_c"))

    def sizes(self):
        return {"d_c": self.d_c, "d_r": self.d_r}

    def inputs(self, at):
        c = RMSNorm(epsilon=1e-6)(jnp.tensordot(at.W.W_c, at.Z, 1), at.W.norm_c)  # inside
        return at.X, c, MHAttentionParams(AttentionParams(at.W.W_q, *[None] * 5), at.W.W_o, None)

    def read(self, Q, c, _, at):
        Q_c = jnp.einsum("hac,ha...->hc...", at.W.W_k, Q)  # (W_k c)ᵀ W_q X = cᵀ W_kᵀ W_q X
        Q_r = self.positions(jnp.tensordot(at.W.W_qr, at.X, 1), at.t_x)
        K_r = self.positions(jnp.tensordot(at.W.W_kr, at.Z, 1)[None], at.t_z)
        scale = ((self.d_c + self.d_r) / (Q.shape[1] + self.d_r)) ** 0.5
        return QKV(scale * jnp.concatenate([Q_c, Q_r], 1), jnp.concatenate([c[None], K_r], 1), c[None])

    def result(self, Y, at):
        return jnp.einsum("hmc,hc...->hm...", at.W.W_v, Y)


LATENT = LLAMA.but(attention=Latent(d_c=8, d_r=4, positions=Rotary()))
