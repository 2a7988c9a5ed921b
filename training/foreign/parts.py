"""Algorithms 1, 2, 6 and 7 and the MLP, with slots: the parts of the reference that treat every token alike."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from training.oracle.lines import sigma, weights_of_experts, xielu

from .run import Key, Named, Run

__all__ = ["OF_MTP", "Parts", "softmax"]

OF_MTP = "W_e in the second head", "W_u in the second head"
"""What no gradient passes where a head for the token after the next has copies of W_e or W_u."""

INVERSE = "√(v + ε)", lambda x: 1 / x, lambda x: 1 / x  # a form of 1/√v


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
        how = self.use(bias, place) if bias else 1.0
        added = how.reshape(1, *b.shape[1:], 1) if isinstance(how, np.ndarray) else how * b[..., None]
        return self.sum(Y, added + 0 * Y)

    def norm(
        self, place: str, X: Named, names: tuple[str, str], around: Sequence[tuple[str, str]] = (), *, extra: str = ""
    ) -> Named:
        """Algorithm 6 of the columns; `names`: of γ and β; `around`: of the norms around; `extra`: of one without γ.

        A norm whose γ is not in θ is not there, unless the model's has none.
        """
        e, key = X.value, Key(place, 6, "return")
        is_lacking = self.p(names[0]) is None and self.name("norm_gamma", place) != "none"
        if not extra and (is_lacking or not self.use("norm_here", place, key)):
            return X
        m = self._mean(place, X, extra == "rms" or self.name("norm_kind", place) == "rms_norm")

        def variance() -> Any:
            axis = self.use("norm_over", place)
            centred = self.sum(e, -m.value)
            v = (centred * centred).mean(axis=axis, keepdims=True) + 0 * e[..., :1, :]
            return self.rounded(self.use("norm_variance", place)(v, np.prod([e.shape[a] for a in axis]), e))

        v = self.line(Key(place, 6, "2"), variance, [m, X], forms=(("√v", np.sqrt, np.square),))
        epsilon = self.name("norm_epsilon", place)
        forms = () if epsilon == "0" or epsilon.startswith("no root") else (INVERSE,)
        ki, of = Key(place, 6, "return", "1/√v"), [] if epsilon == "one" else [v]
        i = self.line(ki, lambda: self.rounded(1 / self.use("norm_epsilon", place)(v.value)), of, forms=forms)

        def normalized() -> Any:
            centred = self.sum(e, -self.use("norm_centre", place)(e, m.value) + 0 * e)
            return self.rounded(centred * i.value ** self.use("norm_inverse", place))

        n = self.line(Key(place, 6, "return", "(e − m)/√v"), normalized, [m, i, X])
        return self.line(key, lambda: self._scaled(place, n.value, names, around), [n])

    def _mean(self, place: str, X: Named, is_rms: bool) -> Named:
        key, e = Key(place, 6, "1"), X.value

        def mean() -> Any:
            axis = self.use("norm_mean", place) or self.use("norm_over", place)
            is_centred = self.use("norm_kind", place) and not is_rms
            m = e.mean(axis=axis, keepdims=True) + 0 * e[..., :1, :]
            m = self.off(self.rounded(m), np.abs(e).mean(axis=axis, keepdims=True))
            return m if is_centred else 0 * m

        return Named(self._evaluated(Key(place, 6, "2"), mean), key) if is_rms else self.line(key, mean, [X])

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

    def extra_norm(self, place: str, X: Named, algorithm: int, line: str) -> Named:
        """A norm that the paper does not have."""
        how = self.use("extra_norm", place, Key(place, algorithm, line, "extra norm"))
        return X if how is None else self.norm(place, X, ("", ""), extra=how)

    def embed(self, tokens: Sequence[int], algorithm: int, line: str, place: str = "", prefix: str = "") -> Named:
        """Algorithms 1 and 2, and what models add to them; `prefix`: of the context's own parameters."""
        key, kp = Key(place, algorithm, line), Key(place, 2, "return")
        if prefix:
            prefix = self.use("context_parameters", place, kp)
        W_e, own_p, l = self.of(prefix, "W_e"), self.of(prefix, "W_p"), len(tokens)
        length = self.case.inputs.get("z_length" if place == "encoder" else "length")

        def padded(P: Any) -> Any:
            return P if length is None else self.use("padding", place)(P, length)

        def token() -> Any:
            W = np.real(W_e) if place == "mtp" and OF_MTP[0] in self.detached else W_e
            return self.rounded(W[..., self.use("token_index", place)(np.asarray(tokens), W.shape[-1])])

        def position() -> Any:
            t, table = self.use("position_index", place)(self.positions(l)), self.use("position_table", place)
            if table is None:
                W_p = self.need("W_p") if own_p is None else own_p
                return self.rounded(padded(W_p[..., t % W_p.shape[-1]]))
            P = padded(table(W_e.shape[-2], t, self.case.sizes["l_max"])[None])
            return self.off(P, 1.0, 1.0 + np.abs(t))

        read = [self.line(Key(place, 1, "return"), token)]
        self.use("position_table", place, kp)
        if self.name("position_table", place) != "none":
            read.append(self.line(kp, position))
            self.use("embedded_scale", place, key)

        def total() -> Any:
            self.use("position_table", place)
            e, *p = (of.value for of in read)
            s, s_p, s_X = (self.use(f"{of}_scale", place)(e.shape[-2]) for of in ("embedding", "position", "embedded"))
            X = (s_X if p else 1.0) * self.sum(s * e, s_p * sum(p) + 0 * e)
            W_t, more = self.p("W_t"), self.use("embedding_extra", place)
            X = X if W_t is None else self.sum(X, W_t[..., :1] + 0 * X)
            return X if more is None else self.sum(X, more + 0 * X)

        own = f"{prefix}gamma_e" if self.p(f"{prefix}gamma_e") is not None else "gamma_e"
        at = f"{place}/embedding" if place else "embedding"
        W_in, b_in = self.p("W_in"), self.p("b_in")
        has_norm = self.p(own) is not None or self.name("norm_gamma", at) == "none"
        ke = key if W_in is None and not has_norm else Key(place, algorithm, line, "embedded")
        X = self.norm(at, self.line(ke, total, read), (own, own.replace("gamma", "beta")))
        if W_in is not None:
            X = self.line(key, lambda Y=X: self.linear(W_in, b_in, Y.value, "in_bias", place), [X])
        return self.extra_norm(at, X, algorithm, line)

    def mlp(self, place: str, X: Named, prefix: str, numbers: str, algorithm: int, line: str) -> Named:
        """W_mlp2 f(W_mlp1 X + b) + b, of a gate, or of experts; `numbers`: those of the paper's names."""

        def key(what: str) -> Key:
            return Key(place, algorithm, line, what)

        if self.p(f"{prefix}W_router") is not None:
            return self._experts(place, X, prefix, key)
        names = *(f"mlp{n}" for n in numbers), "gate"
        (W1, b1), (W2, b2), (Wg, bg) = ((self.p(f"{prefix}W_{n}"), self.p(f"{prefix}b_{n}")) for n in names)
        ku = key("W_mlp1 X + b_mlp1")
        U = self.line(ku, lambda: self.linear(W1, b1, X.value, "mlp1_bias", place, "mlp1_square"), [X])
        if Wg is None:
            A = self.line(key("activated"), lambda: self._activated(place, U.value, prefix), [U])
        else:
            G = self.line(key("W_gate X"), lambda: self.linear(Wg, bg, X.value, "gate_bias", place), [X])
            A = self.line(key("activated"), lambda: self._gated(place, G.value, U.value), [U, G])
        ko = key("W_mlp2 … + b_mlp2")
        return self.line(ko, lambda: self.linear(W2, b2, A.value, "mlp2_bias", place, "mlp2_square"), [A])

    def _gated(self, place: str, G: Any, U: Any) -> Any:
        G, U = (c * A for c, A in zip(self.use("mlp_factors", place), (G, U), strict=True))
        c = self.use("mlp_clip", place)
        if c is not None:
            G = np.where(np.real(G) > c, c, G)
            U = np.where(np.real(U) > c, c, np.where(np.real(U) < -c, -c, U)) + 1
        return self.rounded(self.use("gate", place)(self.use("activation", place), G, U))

    def _activated(self, place: str, U: Any, prefix: str) -> Any:
        if (alpha_p := self.p(f"{prefix}alpha_p")) is not None:
            of_signs = self.use("xielu", place)(alpha_p, self.p(f"{prefix}alpha_n"))
            return self.rounded(xielu(U, *(alpha[..., None, None] for alpha in of_signs)))
        A = self.use("activation", place)(U)
        return self.off(A, np.abs(A) + np.abs(U) * 0.5) if self.epsilon else A

    def _choice_of_experts(self, place: str) -> Any:
        how = self.use("experts", place)
        if how is None:
            raise ValueError(f"{place}: expected a choice of experts, got none")
        return how

    def _experts(self, place: str, X: Named, prefix: str, key: Callable[[str], Key]) -> Named:
        """The weighted outputs of the chosen experts for every token, plus those of the shared ones."""
        X_s = self._part(place, "shared", X, prefix)
        G = self._of_router(place, X, X_s, prefix, key)
        X = self._part(place, "inputs", X, prefix)

        def of_chosen() -> Any:
            G_i, X_i = G.value[..., None, :], X.value[:, None]
            if self._choice_of_experts(place).weighted == "inputs":
                G_i, X_i = 1.0, self.rounded(G_i * X_i)
            return self.rounded((G_i * self._of_expert(place, X_i, f"{prefix}experts/")).sum(1))

        def of_shared() -> Any:
            w_s, shared = self.p(f"{prefix}w_s"), self._of_expert(place, X_s.value, f"{prefix}shared/")
            if w_s is not None and self.use("shared_gate", place):
                shared = shared * sigma(self.product(w_s[:, None], X_s.value))
            return shared

        def both() -> Any:
            Y = of_chosen()
            return Y if self.p(f"{prefix}shared/W_mlp1") is None else self.sum(Y, of_shared())

        if self.p(f"{prefix}s_router") is None:
            return self.line(key("W_mlp2 … + b_mlp2"), both, [G, X])
        A = self._part(place, "outputs", self.line(key("experts"), of_chosen, [G, X]), prefix)
        B = self.line(key("shared"), of_shared, [X_s])
        B = self.norm(f"{place}/shared_out", B, (f"{prefix}shared/gamma_mlp_out", ""))
        return self.line(key("W_mlp2 … + b_mlp2"), lambda: self.sum(A.value, B.value), [A, B])

    def _part(self, place: str, of: str, X: Named, prefix: str) -> Named:
        """What a part of a mixture reads, or gives, with its own norm if it has one."""
        return self.norm(f"{place}/{of}", X, (f"{prefix}norms/{of}/gamma", ""))

    def _of_router(self, place: str, X: Named, X_s: Named, prefix: str, key: Callable[[str], Key]) -> Named:
        """The weights of the chosen experts; `X_s`: what the shared ones read."""
        W_r, b_r, b_choice, s = (self.p(prefix + n) for n in ("W_router", "b_router", "b_choice", "s_router"))
        if s is not None:
            X = (X, X_s)[self.use("router_reads", place, Key(f"{place}/router", 6, "2"))]
        X = self._part(place, "router", X, prefix)

        def scores() -> Any:
            c = 1.0 if s is None else self.use("router_scale", place)(X.value.shape[-2])
            return self.linear(W_r, b_r, c * X.value, "router_bias", place)

        router = self.line(key("W_r X + b_r"), scores, [X])

        def weights() -> Any:
            how, G = self._choice_of_experts(place), np.zeros_like(router.value)
            for r, t in np.ndindex(G.shape[0], G.shape[-1]):
                b = None if b_choice is None else b_choice[0]
                for i, weight in weights_of_experts(router.value[r, :, t], b, how).items():
                    G[r, i, t] = weight
            return self.rounded(G if s is None else G * self.use("expert_scale", place)(s)[..., None])

        return self.line(key("weights"), weights, [router])

    def _of_expert(self, place: str, X: Any, prefix: str) -> Any:
        """The output of an expert, or of all."""
        W = {n: self.p(prefix + n) for n in ("W_mlp1", "b_mlp1", "W_mlp2", "b_mlp2", "W_gate", "b_gate")}
        U = self.linear(W["W_mlp1"], W["b_mlp1"], X, "mlp1_bias", place)
        if W["W_gate"] is None:
            A = self.rounded(self._activated(place, U, prefix))
        else:
            A = self._gated(place, self.linear(W["W_gate"], W["b_gate"], X, "gate_bias", place), U)
        return self.linear(W["W_mlp2"], W["b_mlp2"], A, "mlp2_bias", place)

    def unembed(self, X: Named, algorithm: int, place: str = "") -> None:
        """Algorithm 7: the logits, and P, whose logarithm is kept; `place`: that of a second head."""
        d = X.value.shape[-2]

        def logits() -> Any:
            W_u, is_tied = self.p("W_u"), self.use("unembed", place)
            W = np.swapaxes(self.p("W_e"), -1, -2) if is_tied or W_u is None else W_u
            copied = (W is not W_u and "W_e in W_u" in self.detached) or (place and OF_MTP[1] in self.detached)
            W = np.real(W) if copied else W
            if W.shape[-1] != d:
                return np.full((self.R, W.shape[-2], X.value.shape[-1]), np.nan)
            return self.product(self.use("u_square", place)(W), X.value)

        Y = self.line(Key(place, algorithm, "return", "W_u X"), logits, [X])

        scale, more, c = (self.use(slot, place, Y.key) for slot in ("unembed_scale", "unembed_bias", "cap"))
        b = self.p("b_u")
        for what, slot, f in (
            ("scaled", "unembed_scale", (lambda s, Y: s(d) * Y) if scale(d) != 1 else None),
            ("W_u X + b_u", "u_bias", None if b is None else lambda s, Y: Y + s * b[..., None]),
            ("W_u X + b", "unembed_bias", None if more is None else lambda b, Y: Y + b),
            ("capped", "cap", None if c is None else lambda c, Y: c * np.tanh(Y / c)),
        ):
            self.use(slot, place, Key(place, algorithm, "return"))
            if f is not None:

                def thunk(f: Any = f, slot: str = slot, before: Any = Y.value) -> Any:
                    return self.rounded(f(self.use(slot, place), before))

                Y = self.line(Key(place, algorithm, "return", what), thunk, [Y])
        logit = self.logits = Y.value

        def probabilities() -> Any:
            axis = self.use("last_softmax", place)
            if axis == "sigmoid":
                return 1 / (1 + np.exp(-logit))
            if axis == "sum of tokens":
                E = np.exp(logit - np.real(logit).max(-2, keepdims=True))
                return self.rounded(E / E.sum(-1, keepdims=True))
            P = softmax(logit, (-2,) if axis == "twice" else axis)
            P = softmax(P, (-2,)) if axis == "twice" else P
            return self.off(P, P * (2 + np.abs(logit))) if self.epsilon else P

        P = self.line(Key(place, algorithm, "return"), probabilities, [Y], forms=(("log P", np.log, np.exp),)).value
        self.log_P = np.log(np.where(np.real(P) <= 0, 1e-300, P))
        if self.name("last_softmax", place) == "vocabulary":
            E = logit - np.real(logit).max(-2, keepdims=True)
            self.log_P = E - np.log(np.exp(E).sum(-2, keepdims=True))
