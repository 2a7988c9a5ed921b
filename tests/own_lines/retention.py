"""A mixer that is no attention: sums of values that decay with their distance (Sun et al. 2023, without queries)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from algorithms import LLAMA
from algorithms.lines import Attention, Mixer, Rotary, array
from algorithms.masks import StructuralMask


class RetentionParams(NamedTuple):
    """The projections to and from the sums, and the logarithm of their decay."""

    W_v: Array  # [n_sums, d_e]
    a: Array  # [n_sums]
    W_o: Array  # [d_e, n_sums]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention(Mixer):
    """``W_o Y`` with ``Y[:, t_x] = Σ_{t_z permitted} e^{−e^a |t_x − t_z|} ⊙ (W_v X)[:, t_z]``."""

    n_sums: int = 7
    divided: ClassVar = ("n_sums",)
    loops: ClassVar = "tests.own_lines.loops:retention"

    def shapes(self):
        return RetentionParams(array("n_sums d_e"), array("n_sums", deviation=1.0), array("d_e n_sums"))

    def sizes(self):
        return {"n_sums": self.n_sums}

    def whole(self, X, W, mask, metadata, context=None):
        l = X.shape[-1]
        values = jnp.tensordot(W.W_v, X, 1)  # inside
        dense = mask.dense(l, l) if isinstance(mask, StructuralMask) else mask
        dense = dense.reshape(-1, *dense.shape[-2:]) if dense.ndim > 2 else dense[None]
        t, rate = jnp.arange(l), jnp.exp(W.a)[:, None, None]
        decay = jnp.exp(-rate * jnp.abs(t[:, None] - t[None])[None])[:, None] * dense[None]
        flat = values.reshape(len(values), -1, l)
        Y = jnp.einsum("nbz,nbzx->nbx", flat, jnp.broadcast_to(decay, (*flat.shape, l)))
        cache_length = jnp.broadcast_to(l if metadata.cache_length is None else metadata.cache_length, flat.shape[1:2])
        since = (cache_length[:, None] - 1 - t[None])[None]
        cache = jnp.where(since >= 0, jnp.exp(-rate * jnp.maximum(since, 0)), 0) * flat
        return jnp.tensordot(W.W_o, Y.reshape(values.shape), 1), cache.sum(axis=2)

    def step(self, x, W, cache, metadata, context=None):
        values = jnp.tensordot(W.W_v, x, 1)  # inside
        S = jnp.exp(-jnp.exp(W.a))[:, None] * cache + values
        return jnp.tensordot(W.W_o, S, 1), S

    def begin(self, W, B):
        return jax.tree.map(lambda a: jnp.zeros((self.n_sums, B), a.dtype), W.a)


HYBRID = LLAMA.but(attention=(Retention(), Retention(), Attention(positions=Rotary(), biases=False, window=5)))
