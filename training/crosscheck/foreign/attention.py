"""Algorithms 3, 4 and 5 with slots: queries, keys and values, what positions do to them, scores, weights."""

import math
from typing import Any

import numpy as np

from training.crosscheck.oracle.positions import alibi_slopes, sinusoid, t5_bucket

from .catalogue import choice
from .formulas import sigmoid
from .parts import Named, Parts, softmax
from .run import LARGE, Key

__all__ = ["Attention"]

LATER = ("after", "exponentials")
"""Where the mask may be used behind the scores."""


class Attention(Parts):
    """Attention of X to Z."""

    def attention(
        self,
        place: str,
        X: Any,
        Z: Any,
        kx: Key,
        kz: Key,
        prefix: str,
        mask: Any,
        *,
        distances: str = "",
        embedded: Any = None,
    ) -> Named:
        """Algorithm 5, and Algorithm 4 of every head (alone without W_o).

        `kx`, `kz`: the lines of X and Z; `prefix`: of the parameters W_q [H, d_attn, d_x] …; `mask`: [l_z, l_x];
        `distances`: the name of T5's table; `embedded`: the context before the encoder.
        """
        self.use("turns", place, Key(place, 4, "1"))
        if kx is not kz and self.name("kv_reads", place) == "X":
            mask = np.ones((X.shape[-1], X.shape[-1]), bool)
        if self.p(prefix + "W_c") is not None:
            Q, K, V, keys = self._latent(place, X, kx, prefix)
        else:
            Q, K, V, keys = self._read(place, X, Z, kx, kz, prefix, embedded)
        H, d, d_e = Q.shape[-3], Q.shape[-2], X.shape[-2]
        base = choice("scale", self.case.base.get("scale", "1/√d")).do(d, d_e, H)
        S, ks = self._scores(place, Q, K, keys[:2], base * math.sqrt(d), prefix, distances)
        A, ka = self._weights(place, S, ks, mask, base, (d, d_e, H), prefix)
        W_g = self.p(prefix + "W_g")
        kv, only_v = Key(place, 4, "return"), self.name("values", place) in ("ΣV", "mean", "V")
        Y = self.line(
            kv,
            lambda: self._values(place, self._each(place, V, H), A),
            [keys[2]] if only_v else [ka, keys[2]],
            parts=True,
        )
        if W_g is not None:
            before, k_sum, kv = Y, kv, Key(place, 5, "2")
            gate = sigmoid(self.product(W_g, X[:, None]))
            Y = self.line(kv, lambda: self.rounded(before * gate), [k_sum, kx], parts=True)
        W_o, b_o, ky, ko = self.p(prefix + "W_o"), self.p(prefix + "b_o"), Key(place, 5, "3"), Key(place, 5, "return")
        if W_o is None:
            return Y, kv
        Y = self.line(ky, lambda: self.use("concat", place)(Y), [kv])
        return self.line(ko, lambda: self.linear(self.use("out", place)(W_o), b_o, Y, "o_bias", place), [ky]), ko

    def _each(self, place: str, A: Any, H: int) -> Any:
        """The keys or values of every head, where heads share them."""
        return A if A.shape[-3] == H else self.use("sharing", place)(A, H)

    def _forms(self, d: int) -> tuple[tuple[str, Any, Any], ...]:
        s, r = d**-0.5, d**-0.25
        return (
            ("divided by √d_attn", lambda Q: Q * s, lambda Q: Q / s),
            ("divided by the fourth root of d_attn", lambda Q: Q * r, lambda Q: Q / r),
        )

    def _read(self, place: str, X: Any, Z: Any, kx: Key, kz: Key, prefix: str, embedded: Any) -> Any:
        """Queries, keys and values, ready for line 4, and their lines."""
        k = [Key(place, 4, line) for line in "123"]
        d = self.p(prefix + "W_q").shape[-2]

        def project(i: int) -> Any:
            def thunk() -> Any:
                name, letter = self.use("weights", place)[i], "qkv"[i]
                if i == 0:
                    reads = (X, Z)[self.use("q_reads", place)] if kx is not kz else X
                else:
                    reads = (
                        (Z, X, Z if embedded is None else embedded)[self.use("kv_reads", place)] if kx is not kz else Z
                    )
                W, b = self.p(f"{prefix}W_{name}"), self.p(f"{prefix}b_{name}")
                how = self.use("split", place)
                if how != "mixed":
                    W, b = how(W), None if b is None else how(b[..., None])[..., 0]
                Y = self.linear(W, b, reads[:, None], f"{letter}_bias", place, f"{letter}_square")
                if how == "mixed":  # [H, d, l] → [l, H d] → [H, l, d]
                    R, H, d, l = Y.shape
                    Y = np.swapaxes(np.moveaxis(Y.reshape(R, H * d, l), -1, -2).reshape(R, H, l, d), -1, -2)
                return self.rounded(Y)

            return thunk

        forms = self._forms(d)
        Q = self.line(k[0], project(0), [kx], parts=True, forms=forms)
        K = self.line(k[1], project(1), [kz], parts=True, forms=forms)
        V = self.line(k[2], project(2), [kz], parts=True)
        Q, k[0] = self._normalized(place, Q, k[0], "q", prefix)
        K, k[1] = self._normalized(place, K, k[1], "k", prefix)
        Q, K, V = (self._clipped(place, Y, key) for Y, key in zip((Q, K, V), k, strict=True))
        Q, K, keys = self._turned(place, Q, K, k)
        return Q, K, V, keys

    def _normalized(self, place: str, Y: Any, key: Key, letter: str, prefix: str) -> Named:
        """Queries or keys, RMS-normalized where they have a γ, of d_attn rows or of all heads' rows."""
        gamma, how = self.p(f"{prefix}gamma_{letter}"), self.use("qk_norm", place, key)
        if how == "none" or (gamma is None and how != "rms"):
            return Y, key
        at, kn = f"{place}/{letter}", Key(place, 4, key.line, "normalized")

        def normalized() -> Any:
            self.use("qk_norm", place)
            R, H, d, l = Y.shape
            together = gamma is not None and gamma.shape[-1] != d and how != "each"
            E = Y.reshape(R, 1, H * d, l) if together else Y
            E = E / self.use("norm_epsilon", at)((E * E).mean(-2, keepdims=True))
            if gamma is not None:
                g = self.use("norm_gamma", at)(gamma)
                E = E * (g.reshape(len(g), -1, E.shape[-2]) if g.shape[-1] != d else g[:, None])[..., None]
            return self.rounded(self.rounded(E.reshape(-1, H, d, l)))  # γ may have replicas that Y has not

        return self.line(kn, normalized, [key], parts=True), kn

    def _clipped(self, place: str, Y: Any, key: Key) -> Any:
        c = self.use("clip", place, key)
        return Y if c is None else np.where(np.real(Y) > c, c, np.where(np.real(Y) < -c, -c, Y))

    def _rotate(self, place: str, Y: Any, t: Any, way: int = 1) -> Any:
        """Y turned at the positions t, rounded as tables made in float32 are; `way`: −1 is backwards."""
        turn, first = self.use("rotation", place), self.use("rotation_first", place)
        share, scaling = self.use("rotation_share", place), self.use("rotation_scaling", place)
        if turn is None:
            return Y
        out = turn(Y, way * (t + first), 2 * int(Y.shape[-2] * share / 2), scaling)
        return self.off(self.rounded(out), np.abs(Y).max(-2, keepdims=True), 1.0 + np.abs(t))

    def _turned(self, place: str, Q: Any, K: Any, k: list[Key]) -> Any:
        if self.use("rotation", place, Key(place, 4, "4")) is None:
            return Q, K, k
        turned = []
        for Y, key, on in ((Q, k[0], 0), (K, k[1], 1)):
            kt = Key(place, 4, key.line, "turned")

            def thunk(Y: Any = Y, on: int = on) -> Any:
                way = self.use("rotates", place)[on]
                return self._rotate(place, Y, np.arange(Y.shape[-1]), way) if way else Y

            turned.append((self.line(kt, thunk, [key], parts=True, forms=self._forms(Y.shape[-2])), kt))
        (Q, kq), (K, kk) = turned
        return Q, K, [kq, kk, k[2]]

    def _latent(self, place: str, X: Any, kx: Key, prefix: str) -> Any:
        """Queries, keys and values of multi-head latent attention, and their lines."""
        k = {w: Key(place, 4, w[0], w[2:]) for w in ("1", "2", "3", "2 c", "1 c_q", "2 W_kr X turned")}

        def normed(name: str, W: Any, key: Key, reads: Any) -> Any:
            def thunk() -> Any:
                C = self.product(W, reads)
                C = C / self.use("norm_epsilon", f"{place}/c")((C * C).mean(-2, keepdims=True))
                return self.rounded(C * self.p(f"{prefix}gamma_{name}")[..., None])

            return self.line(key, thunk, [kx])

        t, W_cq = np.arange(X.shape[-1]), self.p(f"{prefix}W_cq")
        C = normed("c", self.p(f"{prefix}W_c"), k["2 c"], X)
        C_q, kq = (X, kx) if W_cq is None else (normed("cq", W_cq, k["1 c_q"], X), k["1 c_q"])
        K_r = self.line(
            k["2 W_kr X turned"], lambda: self._rotate(place, self.product(self.p(f"{prefix}W_kr"), X), t), [kx]
        )

        def part(name: str, reads: Any) -> Any:
            return self.product(self.p(prefix + name), reads[:, None])

        def queries() -> Any:
            return _stacked(part("W_q", C_q), self._rotate(place, part("W_qr", C_q), t))

        def keys() -> Any:
            return _stacked(part("W_k", C), K_r[:, None])

        Q = self.line(k["1"], queries, [kq], parts=True)
        K = self.line(k["2"], keys, [k["2 c"], k["2 W_kr X turned"]], parts=True)
        V = self.line(k["3"], lambda: part("W_v", C), [k["2 c"]], parts=True)
        return Q, K, V, [k["1"], k["2"], k["3"]]

    def _scores(self, place: str, Q: Any, K: Any, keys: list[Key], times: float, prefix: str, distances: str) -> Named:
        """KᵀQ, and what distances and a cap do to it; `times`: a variant's scale times √d_attn."""
        H, d = Q.shape[-3], Q.shape[-2]
        added = self.use("distances", place, Key(place, 4, "4"))
        shifted = added is not None and added[0] == "Transformer-XL" and added[2] != "no u"

        def scores() -> Any:
            self.use("scale", place)
            of = self.sum(Q, self.need(f"{prefix}u")[..., None] + 0 * Q) if shifted else Q
            return times * self.product(np.swapaxes(self._each(place, K, H), -1, -2), of)

        forms = [("divided by √d_attn", lambda S: S * d**-0.5, lambda S: S * d**0.5)]
        forms += [("KᵀQ", lambda S: S / times, lambda S: S * times)] if times != 1 else []
        k = Key(place, 4, "4")
        S = self.line(k, scores, keys, parts=True, forms=forms)
        if added is not None:
            l_z, l_x = S.shape[-2:]
            apart = np.arange(l_z)[:, None] - np.arange(l_x)[None, :]
            S4, k4, k = S, k, Key(place, 4, "5", "with distances")

            def moved() -> Any:
                self.use("distances", place)
                more = self._by_distance(place, added, apart, Q, prefix, distances, times)
                return self.off(self.sum(S4, more + 0 * S4), np.abs(more), 1.0)

            S = self.line(k, moved, [k4], parts=True, forms=forms)
        cap = self.use("score_cap", place, k)
        if cap is not None:
            before, kb, k, c = S, k, Key(place, 4, "5", "capped"), cap * math.sqrt(d)
            self.use("score_cap", place, k)
            S = self.line(k, lambda: self.rounded(c * np.tanh(before / c)), [kb], parts=True, forms=forms)
        self.use("score_cap", place, Key(place, 4, "5"))
        return S, k

    def _by_distance(
        self, place: str, added: Any, apart: Any, Q: Any, prefix: str, distances: str, times: float
    ) -> Any:
        """What scores gain by the distance t_z − t_x, in the unit of line 4; "reversed" and others are deviations."""
        kind, numbers, how = added
        H, _d, root = Q.shape[-3], Q.shape[-2], math.sqrt(Q.shape[-2])
        if how == "reversed":
            apart = -apart
        if kind == "ALiBi":
            return root * np.array([s * apart for s in alibi_slopes(H)])[None]
        if kind == "T5":
            table, both = self.need(distances), place.startswith("enc")
            exact = int(numbers[0]) // (4 if both else 2)  # distances that have a bucket of their own
            if how == "one later":
                apart = np.where(np.abs(apart) > exact, apart - np.sign(apart), apart)
            buckets = [[t5_bucket(int(n), both, int(numbers[0]), int(numbers[1])) for n in row] for row in apart]
            return root * table[:, :, buckets]
        W_r, v = self.need(f"{prefix}W_r"), self.need(f"{prefix}{'u' if how == 'u for v' else 'v'}")
        r = np.array([[sinusoid(-int(n), W_r.shape[-1], numbers[0], "halves") for n in row] for row in apart])
        rows = np.einsum("...hde,zxe->...hdzx", W_r, r)
        return times * np.einsum("...hdzx,...hdx->...hzx", rows, Q + v[..., None])

    def _weights(self, place: str, S: Any, ks: Key, mask: Any, base: float, sizes: Any, prefix: str) -> Named:
        """Line 5 and the softmax; `base`: a variant's scale; `sizes`: d_attn, d_e, H."""
        fill, root = self.name("mask_fill", place), math.sqrt(sizes[0])
        l_z, l_x = S.shape[-2:]

        def permitted() -> Any:
            t_z, t_x = np.arange(l_z)[:, None], np.arange(l_x)[None, :]
            return np.asarray(self.use("mask", place)(mask, t_z, t_x), bool)

        def masked() -> Any:
            M, value = permitted(), self.use("mask_fill", place)
            if fill in LATER:
                return S
            if self.name("mask_fill", place).startswith("add"):
                return np.where(M, S, S + value * root)
            return np.where(M, S, value * root if np.isfinite(value) else value)

        k5, ka = Key(place, 4, "5"), Key(place, 4, "return", "softmax")
        forms = [("divided by √d_attn", lambda S: S / root, lambda S: np.where(S <= LARGE, -np.inf, S * root))]
        S5 = self.line(k5, masked, [ks], parts=True, forms=forms, show=fill not in LATER)

        def probabilities() -> Any:
            axis = self.use("softmax_axis", place)
            A = self.rounded(S5 * (self.use("scale", place)(*sizes) / base / root))
            P = self._softmax(A, axis, prefix, permitted() if fill == "exponentials" else None)
            if np.isneginf(np.real(A)).all(-2).any():
                P = self._empty(place, P, A, S * (self.use("scale", place)(*sizes) / base / root))
            if self.epsilon:
                P = P * (1 + self.noise(P.shape) * (2 + np.abs(np.where(np.isneginf(A), 0, A))))
            return np.where(permitted(), P, 0.0) if fill == "after" else P

        return self.line(ka, probabilities, [k5], parts=True), ka

    def _empty(self, place: str, P: Any, A: Any, S: Any) -> Any:
        """P with the weights of tokens that have nothing to attend to; `S`: the scores before they are masked."""
        how, nothing = self.use("empty", place), np.isneginf(np.real(A)).all(-2, keepdims=True)
        if how == "alike":
            return np.where(nothing, 1 / P.shape[-2], P)
        if how == "unmasked":  # sums with a large number have few digits
            return np.where(nothing, self.off(softmax(S, (-2,)), min(1e-3 / (self.epsilon or 1.0), 1e10)), P)
        return P

    def _softmax(self, A: Any, axis: Any, prefix: str, mask: Any = None) -> Any:
        """The softmax of the catalogue's kinds; a column of −∞ is 0; `mask`: of the exponentials."""
        if axis == ():
            return A
        sink = self.p(f"{prefix}s") if self.use("sinks", "") else None
        over = axis if isinstance(axis, tuple) else (-2,)
        nothing = np.isneginf(np.real(A))
        A = np.where(nothing, 0.0, A) * (math.log(2) if axis == "2" else 1.0)
        top = np.where(nothing, -np.inf, np.real(A)).max(axis=over, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        if axis == "sigmoid":
            return np.where(nothing, 0.0, 1 / (1 + np.exp(-A)))
        E = np.where(nothing if mask is None else ~mask, 0.0, np.exp(A - top))
        total = E.sum(axis=(-1,) if axis == "queries" else over, keepdims=True)
        total = total + {"one": np.exp(-top), "one, stable": 1.0}.get(axis if isinstance(axis, str) else "", 0.0)
        if sink is not None:
            total = total + np.exp(sink[..., None, None] - top)
        if axis == "constant":
            total = np.real(total)
        if axis in ("numerator", "numerator, stable"):
            return E * np.exp(top) if axis == "numerator" else E
        if axis == "mean":
            total = total / E.shape[-2]
        return E / np.where(total == 0, 1.0, total)

    def _values(self, place: str, V: Any, A: Any) -> Any:
        f = self.use("values", place)
        return self.off(f(V, A), np.abs(f(np.abs(V), np.abs(A)))) if self.epsilon else f(V, A)


def _stacked(A: Any, B: Any) -> Any:
    """The rows of A, and below them those of B, which may have other replicas or be of no head."""
    axes = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    return np.concatenate([np.broadcast_to(M, (*axes, *M.shape[-2:])) for M in (A, B)], axis=-2)
