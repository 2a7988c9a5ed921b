"""A mixture of experts: each token takes the k likeliest of n MLPs, and none is dropped (Shazeer et al. 2017)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from algorithms import LLAMA, MLPParams
from algorithms.lines import MLP, array


class ExpertsParams(NamedTuple):
    """The router, and the parameters of n MLPs, stacked on axis 0."""

    W_r: Array  # [N_experts, d_e]
    experts: MLPParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts(MLP):
    """``Σ_i G[i, t] MLP(X[:, t] | 𝓦_i)``: G is the softmax of the k largest rows of ``W_r X``, and 0 elsewhere."""

    n: int
    k: int = 2
    divided: ClassVar = ("N_experts",)
    loops: ClassVar = "tests.own_lines.loops:experts"

    def shapes(self):
        experts = jax.tree.map(lambda s: dataclasses.replace(s, axes=f"N_experts {s.axes}"), super().shapes())
        return ExpertsParams(W_r=array("N_experts d_e"), experts=experts)

    def sizes(self):
        return {"N_experts": self.n}

    def __call__(self, X, W, **options):
        router = jnp.tensordot(W.W_r, X, 1)  # inside
        least = jnp.sort(router, axis=0)[-self.k, None]
        G = jax.nn.softmax(jnp.where(router >= least, router, -jnp.inf), axis=0)  # inside
        expert = super().__call__
        Y = jax.vmap(lambda W: expert(X, W, **options))(W.experts)
        return jnp.einsum("i...,id...->d...", G, Y)


EXPERTS = LLAMA.but(mlp=Experts(n=4, activation="silu", gated=True, biases=False))
