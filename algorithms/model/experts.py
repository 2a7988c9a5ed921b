"""A mixture of experts in place of the MLP: line 8 of Algorithm 10, line 7 of Algorithm 9, and lines 7 and 18 of 8."""

import dataclasses
import math
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, as_columns, scaled
from algorithms.machinery.contract import array
from algorithms.machinery.devices import split_experts
from algorithms.machinery.naming import numbered
from algorithms.machinery.options import as_printed, static
from algorithms.machinery.record import Count, Positive, Range
from algorithms.model.mlp import MLP, Activation
from algorithms.ops.activation import softmax
from algorithms.ops.dropout import dropout
from algorithms.ops.grouped import Blocks, collect, grouped_product, spread
from algorithms.ops.linear import linear
from algorithms.parameters import ExpertNormsParams, ExpertsParams, MLPParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts(MLP):
    """``Σ_i G[i, t] MLP(X[:, t] | 𝓦_i)``: G has the weights of each token's k experts, 0 for others.

    The fields of `MLP` apply to every expert. No token is dropped. Ties go to the first expert.

    Attributes:
        n: number of experts.
        k: number of experts that each token chooses, those with the largest scores.
        scores: how ``W_r X + b_r 1ᵀ`` becomes scores: by the softmax over all experts, or by σ, entry by entry.
        renormalized: whether the weights of the chosen experts, their scores, are divided by their sum.
        factor: factor of the weights.
        weighted: what the weights multiply: the experts' outputs, or their inputs, as in Llama 4.
        router_bias: whether there is a b_r.
        choice_bias: whether b_choice is added to the scores by which experts are chosen, and not to the weights.
        groups: number of groups of consecutive experts.
        chosen_groups: number of groups in which a token chooses: those with the largest sums of their best scores.
        best: number of these scores: two, or one as in DeepSeek-V2.
        shared: s: adds an MLP of s·d_mlp hidden units for all tokens; 0: none.
        d_shared: the number of its hidden units, if it is not s·d_mlp.
        shared_gate: whether that MLP is multiplied by σ(w_sᵀ X), one number for each token, as in Qwen3-Next.
        own_norms: whether the norm before line 8 is replaced by three like ``normalize_output``, of what the router,
            the experts and the shared MLP read, and their two results have such norms, too, as in Gemma 4. The router's
            input is divided by √d_e, and the weights of expert i are multiplied by s_i.
        balance: coefficient of the balancing loss, which training adds.
    """

    n: Count
    k: Count = 2
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalized: bool = True
    factor: Positive = 1.0
    weighted: Literal["outputs", "inputs"] = "outputs"
    router_bias: bool = False
    choice_bias: bool = False
    groups: Count = 1
    chosen_groups: Count = 1
    best: Count = 2
    shared: Annotated[int, Range("a number >= 0", lambda s: s >= 0)] = 0
    d_shared: Count | None = None
    shared_gate: bool = False
    own_norms: bool = False
    balance: Annotated[float, Range("a number >= 0", lambda c: c >= 0)] = 0.0

    divided: ClassVar[tuple[str, ...]] = ("N_experts", "N_shared*d_mlp", "d_shared")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n % self.groups:
            self.refuse("groups", f"a divisor of n = {self.n}")
        if self.chosen_groups > self.groups:
            self.refuse("chosen_groups", f"at most groups = {self.groups}")
        if self.k > self.n // self.groups * self.chosen_groups:
            self.refuse("k", f"at most the {self.n // self.groups * self.chosen_groups} experts to choose from")
        for name, nothing in (("shared_gate", False), ("d_shared", None)):
            if getattr(self, name) and not self.shared:
                self.refuse(name, f"{nothing} where shared = 0")
        if self.own_norms and not (self.shared and self.normalize_output):
            self.refuse("own_norms", "False without a shared MLP and normalize_output")
        if self.weighted == "inputs" and self.biases:
            self.refuse("weighted", "'outputs' where experts have biases")

    def shapes(self) -> ExpertsParams:
        """The shapes of its parameters."""
        mlp, norm = super().shapes()._replace(norm_out=None), self.normalize_output and self.normalize_output.shapes()
        own = norm if self.own_norms else None
        units = "d_shared" if self.d_shared else "N_shared*d_mlp"
        shared = jax.tree.map(lambda s: dataclasses.replace(s, axes=s.axes.replace("d_mlp", units)), mlp)
        return ExpertsParams(
            W_r=array("N_experts d_e"),
            b_r=array("N_experts", self.router_bias),
            b_choice=array("N_experts", self.choice_bias),
            experts=jax.tree.map(lambda s: dataclasses.replace(s, axes=f"N_experts {s.axes}"), mlp),
            shared=shared._replace(norm_out=own) if self.shared else None,
            norm_out=norm,
            w_s=array("d_e", self.shared_gate),
            norms=own and ExpertNormsParams(own, own, own, own),
            s=array("N_experts", self.own_norms, start=1.0),
        )

    def share_read(self, name: str) -> Fraction:
        """Of the experts k/n."""
        return Fraction(self.k, self.n) if name == "experts" else Fraction(1)

    def sizes(self) -> dict[str, int]:
        """The number of experts, and of those that are shared, if there are any, or of their hidden units."""
        shared = {"d_shared": self.d_shared} if self.d_shared else {"N_shared": self.shared} if self.shared else {}
        return {"N_experts": self.n} | shared

    @numbered
    def __call__(
        self, X: Float[Array, "d_e *columns"], W: ExpertsParams, *, activation: Activation
    ) -> Float[Array, "d_e *columns"]:
        """The mixture; the same hidden units of each expert are dropped."""
        norm: Any = self.normalize_output
        X_s = X_r = X
        if W.norms is not None:  # each reads the residual stream by a norm of its own
            X_s, X_r, X = (norm(X, of) for of in W.norms[:3])
            X_r = scaled(X_r, len(X) ** -0.5)
        router = linear(W.W_r, X_r, W.b_r)  # inside
        scores = self.scored(router)
        chosen = self.chosen(scores, W.b_choice)
        G = self.weights(scores, chosen)  # inside
        G = G if W.s is None else G * as_columns(W.s, G)
        if as_printed() or not are_numbers(*X.shape) or X.size == 0:
            expert, G = super().__call__, G.astype(X.dtype)
            if self.weighted == "inputs":
                Y = jax.vmap(lambda g, W: expert(g[None] * X, W, activation=activation))(G, W.experts).sum(0)
            else:
                each = jax.vmap(lambda W: expert(X, W, activation=activation))(W.experts)
                Y = jnp.einsum("i...,id...->d...", G, each)
        else:
            Y = self._of_chosen(X, W.experts, chosen, jnp.take_along_axis(G, chosen, axis=0), activation)
        Y = Y if W.norms is None else norm(Y, W.norms.outputs)
        if W.shared is not None:
            shared = super().__call__(X_s, W.shared, activation=activation)
            Y = Y + (shared if W.w_s is None else jax.nn.sigmoid(linear(W.w_s[None], X_s)) * shared)
        return Y if norm is None else norm(Y, W.norm_out)

    def scored(self, router: Float[Array, "N_experts *columns"]) -> Float[Array, "N_experts *columns"]:
        """The score of every expert, in at least float32."""
        router = router.astype(accumulation_dtype(router.dtype))
        return softmax(router) if self.scores == "softmax" else jax.nn.sigmoid(router)

    def chosen(self, scores: Float[Array, "N_experts *columns"], b_choice: Any = None) -> Int[Array, "k *columns"]:
        """The experts that each token chooses, the best first."""
        scores = jax.lax.stop_gradient(scores if b_choice is None else scores + as_columns(b_choice, scores))
        scores = jnp.moveaxis(scores, 0, -1)
        if self.groups > 1:
            in_groups = scores.reshape(*scores.shape[:-1], self.groups, self.n // self.groups)
            best = jax.lax.top_k(in_groups, min(self.best, in_groups.shape[-1]))[0].sum(-1)
            groups = jax.lax.top_k(best, self.chosen_groups)[1]
            within = jax.nn.one_hot(groups, self.groups, dtype=bool).any(-2)
            scores = jnp.where(within[..., None], in_groups, -jnp.inf).reshape(scores.shape)
        return jnp.moveaxis(jax.lax.top_k(scores, self.k)[1], -1, 0)

    def weights(
        self, scores: Float[Array, "N_experts *columns"], chosen: Int[Array, "k *columns"]
    ) -> Float[Array, "N_experts *columns"]:
        """G: the weights of the chosen experts, and 0 for others."""
        experts = jnp.arange(self.n, dtype=chosen.dtype).reshape(1, -1, *(1,) * (scores.ndim - 1))
        G = jnp.where((chosen[:, None] == experts).any(0), scores, 0)
        if self.renormalized:
            total = G.sum(0, keepdims=True)
            G = G / jnp.where(total == 0, 1, total)
        return self.factor * G

    def balancing_loss(
        self,
        router: Float[Array, "L N_experts *columns"],
        G: Float[Array, "L N_experts *columns"],
        counted: Float[Array, "*columns"],
    ) -> Float[Array, ""]:
        """``n Σ_i f_i p_i``: f_i is the share of the tokens that choose expert i, and p_i its mean share of the scores.

        Both are over the counted tokens of all layers, as in Mixtral's code. It is k if all f_i or all p_i are equal,
        and has a gradient by p alone.

        Source: Fedus et al. 2022, equations (4) to (6).
        """
        scores = jax.vmap(self.scored)(router)
        shares = scores / scores.sum(1, keepdims=True)

        def mean(a):
            return jnp.einsum("li...,...->i", a, counted.astype(a.dtype)) / (len(a) * jnp.maximum(counted.sum(), 1))

        return self.n * jnp.vdot(mean((G > 0).astype(shares.dtype)), mean(shares))

    def _of_chosen(
        self,
        X: Float[Array, "d_e *columns"],
        experts: MLPParams,
        chosen: Int[Array, "k *columns"],
        G: Float[Array, "k *columns"],
        activation: Activation,
    ) -> Float[Array, "d_e *columns"]:
        """``Σ_j G[j, t] MLP(X[:, t] | 𝓦_i)`` for the experts ``i = chosen[j, t]``; no others are computed."""
        kept = dropout(jnp.ones((experts.W_mlp1.shape[1], *X.shape[1:]), X.dtype)) if static.value.dropout else None

        def of_device(X, chosen, G, kept, experts, first):
            T = math.prod(X.shape[1:])
            blocks = Blocks.of(chosen.reshape(-1) - first, len(experts.W_mlp1))

            def rows(X):
                return spread(X.reshape(len(X), T).T, blocks)

            def product(W, b, X):
                Y = grouped_product(W, X, blocks)
                if b is None:
                    return Y
                of_blocks = jnp.take(b, blocks.group, axis=0, mode="fill", fill_value=0)
                return Y + jnp.repeat(of_blocks, len(Y) // len(of_blocks), axis=0)

            of_rows = rows(X)
            if self.weighted == "inputs":
                of_rows, G = of_rows * spread(G.reshape(-1, 1).astype(X.dtype), blocks), jnp.ones_like(G)
            U = product(experts.W_mlp1, experts.b_mlp1, of_rows)
            gate = None if experts.W_gate is None else product(experts.W_gate, experts.b_gate, of_rows)
            hidden = self.hidden(U, gate, activation)
            hidden = hidden if kept is None else hidden * rows(kept)
            Y = collect(product(experts.W_mlp2, experts.b_mlp2, hidden), blocks).reshape(self.k, T, -1)
            return jnp.einsum("kt,ktd->dt", G.reshape(self.k, T).astype(Y.dtype), Y).reshape(X.shape)

        return split_experts(of_device, (X, chosen, G, kept), experts)
