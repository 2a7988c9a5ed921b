"""Algorithms 1, 2, 6 and 7 and the MLP, with slots: the parts of the reference that treat every token alike."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from training.crosscheck.oracle.lines import weights_of_experts

from .formulas import sigmoid
from .run import Key, Run

__all__ = ["Parts", "softmax"]

Named = tuple[Any, Key]
"""A value, and the line that it is of."""


def softmax(Y: Any, axis: tuple[int, ...]) -> Any:
    """The softmax over axes, of complex numbers by their real parts."""
    E = np.exp(Y - np.real(Y).max(axis=axis, keepdims=True))
    return E / E.sum(axis=axis, keepdims=True)


class Parts(Run):
    """Embedding, norms, MLP and unembedding."""

    def of(self, prefix: str, name: str) -> Any:
        """A parameter of the context, or of a layer, or else the one that all share."""
        W = self.p(prefix + name)
        return self.p(name) if W is None else W

    def linear(self, W: Any, b: Any, X: Any, bias: str = "", place: str = "", square: str = "") -> Any:
        """W X + b 1ᵀ, with a slot for the bias and one for a transposed matrix."""
        W = self.use(square, place)(W) if square else W
        Y = self.product(W, X)
        if b is None:
            return Y
        return self.sum(Y, (self.use(bias, place) if bias else 1.0) * b[..., None] + 0 * Y)

    def norm(
        self,
        place: str,
        X: Any,
        source: Key,
        names: tuple[str, str],
        *,
        around: Sequence[tuple[str, str]] = (),
        extra: str = "",
    ) -> Named:
        """Algorithm 6 of the columns; `names`: of γ and β; `around`: of the norms around; `extra`: of one without γ.

        A norm whose γ is not in θ is not there, unless the model's has none.
        """
        k1, k2, k3, kn, k4 = (
            Key(place, 6, line, what)
            for line, what in (("1", ""), ("2", ""), ("return", "1/√v"), ("return", "(e − m)/√v"), ("return", ""))
        )
        is_lacking = self.p(names[0]) is None and self.name("norm_gamma", place) != "none"
        if not extra and (is_lacking or not self.use("norm_here", place, k4)):
            return X, source
        is_rms = extra == "rms" or self.name("norm_kind", place) == "rms_norm"
        m = self._mean(k1, place, X, source, is_rms)

        def variance() -> Any:
            axis = self.use("norm_over", place)
            e = self.sum(X, -m)
            v = (e * e).mean(axis=axis, keepdims=True) + 0 * X[..., :1, :]
            n = np.prod([X.shape[a] for a in axis])
            return self.rounded(self.use("norm_variance", place)(v, n, X))

        v = self.line(k2, variance, [k1, source], forms=(("√v", np.sqrt, np.square),))
        epsilon = self.name("norm_epsilon", place)
        forms = (("√(v + ε)", lambda x: 1 / x, lambda x: 1 / x),)
        i = self.line(k3, lambda: self.rounded(1 / self.use("norm_epsilon", place)(v)), [] if epsilon == "one" else [k2],
                      forms=() if epsilon == "0" or epsilon.startswith("no root") else forms)  # fmt: skip
        n = self.line(
            kn, lambda: self.rounded(self.sum(X, -self.use("norm_centre", place)(X, m) + 0 * X) * i), [k1, k3, source]
        )
        return self.line(k4, lambda: self._scaled(place, n, names, around), [kn]), k4

    def _mean(self, key: Key, place: str, X: Any, source: Key, is_rms: bool) -> Any:
        def mean() -> Any:
            axis = self.use("norm_mean", place) or self.use("norm_over", place)
            is_centred = self.use("norm_kind", place) and not is_rms
            m = X.mean(axis=axis, keepdims=True) + 0 * X[..., :1, :]
            m = self.off(self.rounded(m), np.abs(X).mean(axis=axis, keepdims=True))
            return m if is_centred else 0 * m

        return self._evaluated(Key(key.place, 6, "2"), mean) if is_rms else self.line(key, mean, [source])

    def _scaled(self, place: str, n: Any, names: tuple[str, str], around: Sequence[tuple[str, str]]) -> Any:
        """n ⊙ γ + β."""
        which = self.use("norm_which", place)
        if which == "swapped":
            names = names[1], names[0]
        elif which and around:
            names = around[(around.index(names) + which) % len(around)]
        gamma, beta = self.p(names[0]), self.p(names[1])
        gamma = np.ones_like(n[:1, :, 0]) if gamma is None else gamma
        Y = n * self.use("norm_gamma", place)(gamma)[..., None]
        return self.rounded(Y if beta is None else self.sum(Y, self.use("norm_beta", place)(beta)[..., None] + 0 * Y))

    def extra_norm(self, place: str, X: Any, source: Key, algorithm: int, line: str) -> Named:
        """A norm that the paper does not have."""
        how = self.use("extra_norm", place, Key(place, algorithm, line, "extra norm"))
        return (X, source) if how is None else self.norm(place, X, source, ("", ""), extra=how)

    def embed(self, tokens: Sequence[int], algorithm: int, line: str, place: str = "", prefix: str = "") -> Named:
        """Algorithms 1 and 2, and what models add to them; `prefix`: of the context's own parameters."""
        key = Key(place, algorithm, line)
        kt, kp = Key(place, 1, "return"), Key(place, 2, "return")
        if prefix:
            prefix = self.use("context_parameters", place, kp)
        W_e, own_p, l = self.of(prefix, "W_e"), self.of(prefix, "W_p"), len(tokens)

        length = self.case.inputs.get("z_length" if place == "encoder" else "length")

        def padded(P: Any) -> Any:
            return P if length is None else self.use("padding", place)(P, length)

        def token() -> Any:
            return self.rounded(W_e[..., self.use("token_index", place)(np.asarray(tokens), W_e.shape[-1])])

        def position() -> Any:
            t, table = self.use("position_index", place)(np.arange(l)), self.use("position_table", place)
            if table is None:
                W_p = self.need("W_p") if own_p is None else own_p
                return self.rounded(padded(W_p[..., t % W_p.shape[-1]]))
            P = padded(table(W_e.shape[-2], t, self.case.sizes["l_max"])[None])
            return self.off(P, 1.0, 1.0 + np.abs(t))

        e, p, sources = self.line(kt, token), 0.0, [kt]
        self.use("position_table", place, kp)
        if self.name("position_table", place) != "none":
            p, sources = self.line(kp, position), [kt, kp]

        def total() -> Any:
            self.use("position_table", place)
            s = self.use("embedding_scale", place)(e.shape[-2])
            X = self.sum(s * e, self.use("embedding_both", place)(s, e.shape[-2]) * p + 0 * e)
            W_t, more = self.p("W_t"), self.use("embedding_extra", place)
            X = X if W_t is None else self.sum(X, W_t[..., :1] + 0 * X)
            return X if more is None else self.sum(X, more + 0 * X)

        own = f"{prefix}gamma_e" if self.p(f"{prefix}gamma_e") is not None else "gamma_e"
        at = f"{place}/embedding" if place else "embedding"
        has_norm = self.p(own) is not None or self.name("norm_gamma", at) == "none"
        ke = Key(place, algorithm, line, "embedded") if has_norm or self.p("W_in") is not None else key
        X, source = self.norm(at, self.line(ke, total, sources), ke, (own, own.replace("gamma", "beta")))
        if self.p("W_in") is not None:
            W_in, b_in, Y = self.p("W_in"), self.p("b_in"), X
            X, source = self.line(key, lambda: self.linear(W_in, b_in, Y, "in_bias", place), [source]), key
        return self.extra_norm(at, X, source, algorithm, line)

    def mlp(
        self, place: str, X: Any, source: Key, prefix: str, numbers: tuple[str, str], algorithm: int, line: str
    ) -> Named:
        """W_mlp2 f(W_mlp1 X + b) + b, of a gate, or of experts; `numbers`: those of the paper's names."""
        ko = Key(place, algorithm, line, "W_mlp2 … + b_mlp2")
        if self.p(f"{prefix}W_router") is not None:
            return self._experts(place, X, source, prefix, algorithm, line), ko
        a, b = numbers
        kh, ka, kg = (Key(place, algorithm, line, what) for what in ("W_mlp1 X + b_mlp1", "activated", "W_gate X"))
        W1, b1, W2, b2, Wg, bg = (
            self.p(prefix + n) for n in (f"W_mlp{a}", f"b_mlp{a}", f"W_mlp{b}", f"b_mlp{b}", "W_gate", "b_gate")
        )
        U = self.line(kh, lambda: self.linear(W1, b1, X, "mlp1_bias", place, "mlp1_square"), [source])
        if Wg is None:
            A = self.line(ka, lambda: self._activated(self.use("activation", place)(U), U), [kh])
        else:
            G = self.line(kg, lambda: self.linear(Wg, bg, X, "gate_bias", place), [source])
            A = self.line(ka, lambda: self._gated(place, G, U), [kh, kg])
        return self.line(ko, lambda: self.linear(W2, b2, A, "mlp2_bias", place, "mlp2_square"), [ka]), ko

    def _gated(self, place: str, G: Any, U: Any) -> Any:
        c = self.use("mlp_clip", place)
        if c is not None:
            G = np.where(np.real(G) > c, c, G)
            U = np.where(np.real(U) > c, c, np.where(np.real(U) < -c, -c, U)) + 1
        return self.rounded(self.use("gate", place)(self.use("activation", place), G, U))

    def _activated(self, A: Any, U: Any) -> Any:
        return self.off(A, np.abs(A) + np.abs(U) * 0.5) if self.epsilon else A

    def _experts(self, place: str, X: Any, source: Key, prefix: str, algorithm: int, line: str) -> Any:
        """What the chosen experts give every token, weighted, and what the shared ones give it."""
        kr, kw, ko = (Key(place, algorithm, line, what) for what in ("W_r X + b_r", "weights", "W_mlp2 … + b_mlp2"))
        W_r, b_r, b_choice = (self.p(prefix + n) for n in ("W_router", "b_router", "b_choice"))
        router = self.line(kr, lambda: self.linear(W_r, b_r, X, "router_bias", place), [source])

        def weights() -> Any:
            how, G = self.use("experts", place), np.zeros_like(router)
            if how is None:
                raise ValueError(f"{place}: expected a choice of experts, got none")
            for r, t in np.ndindex(router.shape[0], router.shape[-1]):
                b = None if b_choice is None else b_choice[0]
                for i, weight in weights_of_experts(router[r, :, t], b, how).items():
                    G[r, i, t] = weight
            return self.rounded(G)

        G = self.line(kw, weights, [kr])

        def each(prefix: str, X: Any) -> Any:
            W = {n: self.p(prefix + n) for n in ("W_mlp1", "b_mlp1", "W_mlp2", "b_mlp2", "W_gate", "b_gate")}
            U = self.linear(W["W_mlp1"], W["b_mlp1"], X, "mlp1_bias", place)
            A = self._gated(place, self.linear(W["W_gate"], W["b_gate"], X, "gate_bias", place), U)
            return self.linear(W["W_mlp2"], W["b_mlp2"], A, "mlp2_bias", place)

        def total() -> Any:
            Y = self.rounded((G[..., None, :] * each(f"{prefix}experts/", X[:, None])).sum(1))
            if self.p(f"{prefix}shared/W_mlp1") is not None:
                w_s, shared = self.p(f"{prefix}w_s"), each(f"{prefix}shared/", X)
                if w_s is not None and self.use("shared_gate", place):
                    shared = shared * sigmoid(self.product(w_s[:, None], X))
                Y = self.sum(Y, shared)
            return Y

        return self.line(ko, total, [kw, source])

    def unembed(self, X: Any, source: Key, algorithm: int) -> None:
        """Algorithm 7: the logits, and P, whose logarithm is kept."""
        kl = Key("", algorithm, "return", "W_u X")

        def logits() -> Any:
            W_u, is_tied = self.p("W_u"), self.use("unembed", "")
            W = np.swapaxes(self.p("W_e"), -1, -2) if is_tied or W_u is None else W_u
            W = np.real(W) if W is not W_u and "W_e in W_u" in self.detached else W
            if W.shape[-1] != X.shape[-2]:
                return np.full((self.R, W.shape[-2], X.shape[-1]), np.nan)
            return self.product(self.use("u_square", "")(W), X)

        Y = self.line(kl, logits, [source])

        def then(what: str, slot: str, f: Callable[[Any], Any] | None) -> None:
            nonlocal Y, kl
            self.use(slot, "", Key("", algorithm, "return"))
            if f is not None:
                before, last, kl = Y, kl, Key("", algorithm, "return", what)

                def thunk() -> Any:
                    self.use(slot, "")
                    return self.rounded(f(before))

                Y = self.line(kl, thunk, [last])

        scale, more, c = (self.use(slot, "", kl) for slot in ("unembed_scale", "unembed_bias", "cap"))
        b, d = self.p("b_u"), X.shape[-2]
        then("scaled", "unembed_scale", (lambda Y: scale(d) * Y) if scale(d) != 1 else None)
        then("W_u X + b_u", "u_bias", None if b is None else lambda Y: Y + self.use("u_bias", "") * b[..., None])
        then("W_u X + b", "unembed_bias", None if more is None else lambda Y: Y + more)
        then("capped", "cap", None if c is None else lambda Y: c * np.tanh(Y / c))

        def probabilities() -> Any:
            axis = self.use("last_softmax", "")
            if axis == "sigmoid":
                return 1 / (1 + np.exp(-Y))
            if axis == "sum of tokens":
                E = np.exp(Y - np.real(Y).max(-2, keepdims=True))
                return self.rounded(E / E.sum(-1, keepdims=True))
            P = softmax(Y, (-2,) if axis == "twice" else axis)
            P = softmax(P, (-2,)) if axis == "twice" else P
            return self.off(P, P * (2 + np.abs(Y))) if self.epsilon else P

        P = self.line(Key("", algorithm, "return"), probabilities, [kl], forms=(("log P", np.log, np.exp),))
        self.log_P = np.log(np.where(np.real(P) <= 0, 1e-300, P))
        if self.name("last_softmax", "") == "vocabulary":
            top = np.real(Y).max(-2, keepdims=True)
            self.log_P = Y - top - np.log(np.exp(Y - top).sum(-2, keepdims=True))
