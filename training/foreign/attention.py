"""Algorithms 3, 4 and 5 with slots: queries, keys and values, what positions do to them, scores, weights.

In place of Algorithm 5 stands a recurrence, token by token, in some models: the gated delta rule, Mamba-2, the RG-LRU, or a
short convolution.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from training.oracle.lines import sigma
from training.oracle.positions import alibi_slopes, sinusoid, t5_bucket

from .catalogue import choice, gelu_tanh, merged, silu
from .parts import Parts, softmax
from .run import LARGE, Key, Named

__all__ = ["Attention"]

LATER = ("after", "exponentials")  # places after the scores at which the mask may be applied
INDEXER = "W_cq gamma_cq index/W_q index/W_k index/gamma_k index/beta_k index/W_w"
OF_HEADS = "W_z W_z1 W_z2 W_b W_a W_a1 W_a2 b_a a D gamma W_out"
RG_LRU = "W_x b_x W_y b_y C b_c W_i b_i W_r b_r a W_out b_out"
SHORT = "W_x b_x W_i b_i W_y b_y C b_c W_out b_out"


class Attention(Parts):
    """Attention of X to Z, or a recurrence over X."""

    def attention(
        self,
        place: str,
        X: Named,
        Z: Named,
        prefix: str,
        mask: Any,
        *,
        distances: str = "",
        other: Sequence[Named] = (),
    ) -> Named:
        """Algorithm 5, and Algorithm 4 of every head (alone without W_o).

        `prefix`: of the parameters W_q [H, d_attn, d_x] …; `mask`: [l_z, l_x]; `distances`: the name of T5's table;
        `other`: what code may read by mistake: X before a norm, or the context before the encoder, and behind each of its
        layers.
        """
        self.use("turns", place, Key(place, 4, "1"))
        l_x = X.value.shape[-1]
        if X is not Z and self.name("kv_reads", place) == "X":
            mask = np.ones((l_x, l_x), bool)
        W_g, W_o, b_o, W_c = (self.p(prefix + name) for name in ("W_g", "W_o", "b_o", "W_c"))
        n, line = self.use("keys_of", place, Key(place, 4, "2")), place.partition("/")[2]
        given = self.kept.get(f"l{n:g}/{line}") if n else None
        Q, K, V = self._read(place, X, Z, prefix, other, given) if W_c is None else self._latent(place, X, prefix)
        earlier = [*self.kept.values()][-1:]
        self.kept[place] = K, V
        if self.use("kv_layer", place, Key(place, 4, "4")) and earlier and X is Z:
            K, V = earlier[0]
        mask = mask if W_c is None else self._chosen(place, X.value[0], prefix, mask)
        self.use("heads", place, Key(place, 4, "4"))
        Q, K, V = (self._in_heads(place, Y, Q.value.shape[-3]) for Y in (Q, K, V))
        H, d, d_e = *Q.value.shape[-3:-1], X.value.shape[-2]
        base = choice("scale", self.case.base.get("scale", "1/√d")).do(d, d_e, H)
        S = self._scores(place, Q, K, base * math.sqrt(d), prefix, distances)
        A = self._weights(place, S, mask, base, (d, d_e, H), prefix)
        of = [V] if self.name("values", place) in ("ΣV", "mean", "V") else [A, V]
        Y = self.line(Key(place, 4, "return"), lambda: self._values(place, V.value, A.value), of, parts=True)
        if W_g is not None:

            def gated(before: Any = Y.value) -> Any:
                return self.rounded(before * sigma(self.product(W_g, X.value[:, None])))

            Y = self.line(Key(place, 5, "2"), gated, [Y, X], parts=True)
        if W_o is None:
            return Y
        Y = self.line(Key(place, 5, "3"), lambda before=Y.value: self.use("concat", place)(before), [Y])
        out = Key(place, 5, "return")
        return self.line(out, lambda: self.linear(self.use("out", place)(W_o), b_o, Y.value, "o_bias", place), [Y])

    def _in_heads(self, place: str, Y: Named, H: int) -> Named:
        """The rows of H heads, or of keys and values that some of these share, in another number of heads."""
        n, (R, own, d, l) = self.use("heads", place), Y.value.shape
        if n is None:
            return Y
        if n == H or n * own % H or own * d % (n * own // H):
            raise ValueError(f"{place}: expected rows that can be in {n} heads, got {own} of {d}")
        return Y._replace(value=Y.value.reshape(R, n * own // H, -1, l))

    def _each(self, place: str, A: Any, H: int, *, values: bool = False) -> Any:
        """The keys or values of every head, where heads share them."""
        A = self._exchanged(place, A, 2 if values else 1)
        own = self.use("value_sharing", place) if values else None
        return A if A.shape[-3] == H else (own or self.use("sharing", place))(A, H)

    def _exchanged(self, place: str, A: Any, i: int) -> Any:
        """The queries (`i`: 0), keys or values of each head, which are perhaps another's."""
        which, order = self.use("heads_exchanged", place)
        return A[..., order(A.shape[-3]), :, :] if i == which else A

    def _forms(self, d: int) -> tuple[tuple[str, Any, Any], ...]:
        s, r = d**-0.5, d**-0.25
        return (
            ("divided by √d_attn", lambda Q: Q * s, lambda Q: Q / s),
            ("divided by the fourth root of d_attn", lambda Q: Q * r, lambda Q: Q / r),
        )

    def _read(
        self, place: str, X: Named, Z: Named, prefix: str, other: Sequence[Named], given: tuple[Named, Named] | None
    ) -> tuple[Named, Named, Named]:
        """Queries, keys and values, ready for line 4; `given`: keys and values of another layer."""

        def project(i: int) -> Any:
            name, letter, reads = self.use("weights", place)[i], "qkv"[i], Z
            if i and given:
                return given[i - 1].value
            name = "k" if name == "v" and is_one else name
            if X is not Z:
                slot, of = ("q_reads", (X, Z)) if i == 0 else ("kv_reads", (Z, X, *other))
                reads = of[self.use(slot, place)]
            elif other and letter in self.use("unnormalized", place):
                reads = other[0]
            W, b = self.p(f"{prefix}W_{name}"), self.p(f"{prefix}b_{name}")
            how = self.use("split", place)
            if how == "per head":
                W, b = (None if A is None else self._per_head(prefix, kind, i) for kind, A in (("W", W), ("b", b)))
            elif how != "mixed":
                W, b = how(W), None if b is None else how(b[..., None])[..., 0]
            Y = self.linear(W, b, reads.value[:, None], f"{letter}_bias", place, f"{letter}_square")
            if how == "mixed":  # [H, d, l] → [l, H d] → [H, l, d]
                R, H, d, l = Y.shape
                Y = np.swapaxes(np.moveaxis(Y.reshape(R, H * d, l), -1, -2).reshape(R, H, l, d), -1, -2)
            return self.rounded(Y)

        forms, is_one = self._forms(self.p(prefix + "W_q").shape[-2]), self.p(f"{prefix}W_v") is None
        Q, K, V = (
            self.line(Key(place, 4, "123"[i]), lambda i=i: project(i), [of], parts=True, forms=forms if i < 2 else ())
            for i, of in enumerate((X, *(given or (Z, Z))))
        )
        given = given and (K, V)
        Q, K = self._normalized(place, Q, "q", prefix), self._normalized(place, K, "k", prefix)
        Q, K, V = (self._clipped(place, Y) for Y in (Q, K, V))
        if self.use("rotation", place, Key(place, 4, "4")) is not None:
            Q, K = self._turned(place, Q, 0), K if given else self._turned(place, K, 1)
            self.use("rotates", place, Key(place, 4, "return"))
            V = self._turned(place, V, 2) if choice("rotates", self.name("rotates", place)).do[2] else V
        if self.name("qk_norm", place) == "late":
            Q, K = (self._normalized(place, Y, of, prefix, late=True) for Y, of in ((Q, "q"), (K, "k")))
        grow = self.use("temperature", place, Q.key)
        Q = Q if grow is None else Q._replace(value=self.rounded(Q.value * grow(self.positions(Q.value.shape[-1]))))
        return (Q, *given) if given else (Q, K, self._values_of(place, V, K if is_one else V))

    def _values_of(self, place: str, V: Named, K: Named) -> Named:
        """The values, normalized in some models; `K`: the keys, if these are also values."""
        is_normed, key = self.use("value_norm", place, V.key), Key(place, 4, "3", "normalized")
        # the norm of keys holds that of the values that they are, too, so that only the last line tells these from others
        if K is not V and self.use("keys_as_values", place, Key(place, 4, "return")):
            V, key = K, Key(place, 4, "3", "normalized keys")
        if not is_normed:
            return V

        def normalized() -> Any:
            v = (V.value * V.value).mean(-2, keepdims=True)
            return self.rounded(V.value / self.use("norm_epsilon", f"{place}/v")(v))

        return self.line(key, normalized, [V], parts=True)

    def _per_head(self, prefix: str, kind: str, i: int) -> Any:
        """The rows that are read as head h's queries (`i`: 0), keys or values if the rows of W_q, W_k, W_v are read as [H, 3, d]."""
        A = np.concatenate([self.p(f"{prefix}{kind}_{letter}") for letter in "qkv"], axis=1)
        return A.reshape(len(A), -1, 3, *A.shape[2:])[:, :, i]

    def _normalized(self, place: str, Y: Named, letter: str, prefix: str, *, late: bool = False) -> Named:
        """Queries or keys, RMS-normalized where they have a γ, of d_attn rows or of all heads' rows."""
        gamma, how = self.p(f"{prefix}gamma_{letter}"), self.use("qk_norm", place, Y.key)
        other = "k" if letter == "q" else "q"
        if how in ("none", other) or (how == "late") != late or (gamma is None and how != "rms"):
            return Y

        def normalized() -> Any:
            self.use("qk_norm", place)
            R, H, d, l = Y.value.shape
            is_of_all = gamma is not None and gamma.shape[-1] != d
            together = how == "together" or (is_of_all and how != "each")
            E, at = Y.value.reshape(R, 1, H * d, l) if together else Y.value, f"{place}/{letter}"
            axis, W = self.use("norm_over", at), gamma
            v = (E * E).mean(axis, keepdims=True)
            v = self.use("norm_variance", at)(v, np.prod([E.shape[a] for a in axis]), E)
            E = E / self.use("norm_epsilon", at)(v)
            if gamma is not None:
                if self.use("qk_gamma", at) == "other":
                    W = self.need(f"{prefix}gamma_{other}")
                g = self.use("norm_gamma", at)(W)
                g = np.tile(g, H) if together and not is_of_all else g
                E = E * (g.reshape(len(g), -1, E.shape[-2]) if is_of_all else g[:, None])[..., None]
            return self.rounded(self.rounded(E.reshape(-1, H, d, l)))  # γ may have replicas that Y has not

        return self.line(Key(place, 4, Y.key.line, "normalized"), normalized, [Y], parts=True)

    def _clipped(self, place: str, Y: Named) -> Named:
        c, y = self.use("clip", place, Y.key), Y.value
        return Y if c is None else Y._replace(value=np.where(np.real(y) > c, c, np.where(np.real(y) < -c, -c, y)))

    def _rotate(self, place: str, Y: Any, t: Any, way: int = 1, of: str = "") -> Any:
        """Y turned at the positions t, rounded as tables made in float32 are; `way`: −1 is backwards; `of`: "/q", "/k"."""
        turn, first = self.use("rotation", place), self.use("rotation_first", place + of)
        share, scaling = self.use("rotation_share", place), self.use("rotation_scaling", place)
        if turn is None:
            return Y
        d = 2 * int(Y.shape[-2] * share / 2)
        if d == 0:
            raise ValueError(f"{place}: expected rows to rotate, got {share:g} of {Y.shape[-2]}")
        out = turn(Y, way * first(t), d, scaling)
        return self.off(self.rounded(out), np.abs(Y).max(-2, keepdims=True), 1.0 + np.abs(t))

    def _turned(self, place: str, Y: Named, on: int) -> Named:
        """Queries (`on`: 0), keys (1) or values (2), rotated."""
        y = Y.value

        def turned() -> Any:
            way = self.use("rotates", place)[on]
            return self._rotate(place, y, self.positions(y.shape[-1]), way, ("/q", "/k", "")[on]) if way else y

        key = Key(place, 4, Y.key.line, "turned")
        return self.line(key, turned, [Y], parts=True, forms=self._forms(y.shape[-2]))

    def _latent(self, place: str, X: Named, prefix: str) -> tuple[Named, Named, Named]:
        """Queries, keys and values of multi-head latent attention."""
        t, W_cq = self.positions(X.value.shape[-1]), self.p(f"{prefix}W_cq")

        def normed(name: str, line: str) -> Named:
            def thunk() -> Any:
                C = self.product(self.p(f"{prefix}W_{name}"), X.value)
                C = C / self.use("norm_epsilon", f"{place}/c")((C * C).mean(-2, keepdims=True))
                return self.rounded(C * self.p(f"{prefix}gamma_{name}")[..., None])

            return self.line(Key(place, 4, line, "c" if name == "c" else "c_q"), thunk, [X])

        def part(name: str, reads: Named) -> Any:
            return self.product(self.p(prefix + name), reads.value[:, None])

        C = normed("c", "2")
        C_q = X if W_cq is None else normed("cq", "1")
        kr, W_kr = Key(place, 4, "2", "W_kr X turned"), self.p(f"{prefix}W_kr")
        K_r = self.line(kr, lambda: self._rotate(place, self.product(W_kr, X.value), t), [X])

        def queries() -> Any:
            return _stacked(part("W_q", C_q), self._rotate(place, part("W_qr", C_q), t))

        def keys() -> Any:
            return _stacked(part("W_k", C), K_r.value[:, None])

        Q = self.line(Key(place, 4, "1"), queries, [C_q], parts=True)
        K = self.line(Key(place, 4, "2"), keys, [C, K_r], parts=True)
        return Q, K, self.line(Key(place, 4, "3"), lambda: part("W_v", C), [C], parts=True)

    def _chosen(self, place: str, X: Any, prefix: str, mask: Any) -> Any:
        """The mask of the tokens that an indexer chooses, if there is one."""
        arrays = {name: self.p(f"{prefix}{name}") for name in INDEXER.split()}
        k = self.use("index_k", place, Key(place, 4, "5"))
        if k is None or arrays["index/W_q"] is None or len(mask) <= k:
            return mask
        W_cq, gamma_cq, W_q, W_k, gamma_k, beta_k, W_w = (np.real(arrays[name][0]) for name in INDEXER.split())
        pairs, X = self.use("index_pairs", place, Key(place, 4, "5")), np.real(X)
        name = re.sub("^(halves|neighbours)", pairs, self.name("rotation", place))
        turn, scaling = choice("rotation", name).do, self.use("rotation_scaling", place)
        t, d_r = self.positions(X.shape[-1]), self.p(f"{prefix}W_kr").shape[-2]

        def turned(Y: Any) -> Any:
            if turn is None:
                return Y
            return np.concatenate([turn(Y[..., :d_r, :], t, d_r, scaling), Y[..., d_r:, :]], axis=-2)

        C, E = W_cq @ X, W_k @ X
        C = C / self.use("norm_epsilon", f"{place}/c")((C * C).mean(0)) * gamma_cq[:, None]
        E = (E - E.mean(0)) / np.sqrt(E.var(0) + 1e-6) * gamma_k[:, None] + beta_k[:, None]
        S = np.maximum(np.swapaxes(turned(E[None]), -1, -2) @ turned(W_q @ C), 0)
        I = np.where(mask, np.einsum("hx,hzx->zx", W_w @ X, S), -np.inf)
        return mask & (np.sort(I, axis=0)[-int(k)] <= I)

    def _scores(self, place: str, Q: Named, K: Named, times: float, prefix: str, distances: str) -> Named:
        """KᵀQ, and what distances and a cap do to it; `times`: a variant's scale times √d_attn."""
        key, (H, d) = Key(place, 4, "4"), Q.value.shape[-3:-1]
        added = self.use("distances", place, key)
        shifted = added is not None and added[0] == "Transformer-XL" and added[2] != "no u"

        def scores() -> Any:
            self.use("scale", place)
            of = self._exchanged(place, Q.value, 0)
            of = self.sum(of, self.need(f"{prefix}u")[..., None] + 0 * of) if shifted else of
            return times * self.product(np.swapaxes(self._each(place, K.value, H), -1, -2), of)

        forms = [("divided by √d_attn", lambda S: S * d**-0.5, lambda S: S * d**0.5)]
        forms += [("KᵀQ", lambda S: S / times, lambda S: S * times)] if times != 1 else []
        S = self.line(key, scores, [Q, K], parts=True, forms=forms)
        if added is not None:
            l_z, l_x = S.value.shape[-2:]
            apart = np.arange(l_z)[:, None] - np.arange(l_x)[None, :]

            def moved(before: Any = S.value) -> Any:
                self.use("distances", place)
                more = self._by_distance(place, added, apart, Q.value, prefix, distances, times)
                return self.off(self.sum(before, more + 0 * before), np.abs(more), 1.0)

            S = self.line(Key(place, 4, "5", "with distances"), moved, [S], parts=True, forms=forms)
        cap = self.use("score_cap", place, S.key)
        if cap is not None:
            key, c = Key(place, 4, "5", "capped"), cap * math.sqrt(d)
            self.use("score_cap", place, key)
            S = self.line(
                key, lambda before=S.value: self.rounded(c * np.tanh(before / c)), [S], parts=True, forms=forms
            )
        self.use("score_cap", place, Key(place, 4, "5"))
        return S

    def _by_distance(
        self, place: str, added: Any, apart: Any, Q: Any, prefix: str, distances: str, times: float
    ) -> Any:
        """The part of the scores that depends on the distance t_z − t_x, in the unit of line 4; "reversed" and others are deviations."""
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

    def _weights(self, place: str, scores: Named, mask: Any, base: float, sizes: Any, prefix: str) -> Named:
        """Line 5 and the softmax; `base`: a variant's scale; `sizes`: d_attn, d_e, H."""
        S = scores.value
        fill, root = self.name("mask_fill", place), math.sqrt(sizes[0])
        l_z, l_x = S.shape[-2:]

        def permitted() -> Any:
            t_z, t_x = np.arange(l_z)[:, None], np.arange(l_x)[None, :]
            return np.asarray(self.use("mask", place)(mask, t_z, t_x), bool)

        def masked() -> Any:
            M, value = permitted(), self.use("mask_fill", place)
            if fill in LATER:
                return S
            if fill.startswith("add"):
                return np.where(M, S, S + value * root)
            return np.where(M, S, value * root if np.isfinite(value) else value)

        forms = [("divided by √d_attn", lambda S: S / root, lambda S: np.where(S <= LARGE, -np.inf, S * root))]
        of_line = self.line(Key(place, 4, "5"), masked, [scores], parts=True, forms=forms, show=fill not in LATER)

        def probabilities() -> Any:
            axis = self.use("softmax_axis", place)
            A = self.rounded(of_line.value * (self.use("scale", place)(*sizes) / base / root))
            P = self._softmax(A, axis, prefix, permitted() if fill == "exponentials" else None)
            if np.isneginf(np.real(A)).all(-2).any():
                P = self._empty(place, P, A, S * (self.use("scale", place)(*sizes) / base / root))
            if self.epsilon:
                P = P * (1 + self.noise(P.shape) * (2 + np.abs(np.where(np.isneginf(A), 0, A))))
            return np.where(permitted(), P, 0.0) if fill.endswith("after") else P

        return self.line(Key(place, 4, "return", "softmax"), probabilities, [of_line], parts=True)

    def _empty(self, place: str, P: Any, A: Any, S: Any) -> Any:
        """P with the weights of tokens that have nothing to attend to; `S`: the scores before they are masked."""
        how, nothing = self.use("empty", place), np.isneginf(np.real(A)).all(-2, keepdims=True)
        if how == "unmasked":  # sums with a large number have few digits
            return np.where(nothing, self.off(softmax(S, (-2,)), min(1e-3 / (self.epsilon or 1.0), 1e10)), P)
        return np.where(nothing, 1 / P.shape[-2], P) if how == "alike" else P

    def _softmax(self, A: Any, axis: Any, prefix: str, mask: Any = None) -> Any:
        """The softmax of the catalogue's kinds; a column of −∞ is 0; `mask`: of the exponentials."""
        if axis == ():
            return A
        sink = self.p(f"{prefix}s") if self.use("sinks", "") else None
        over = axis if isinstance(axis, tuple) else (-3,) if axis == "heads" else (-2,)
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
        if axis == "heads":
            return np.where(total == 0, 1 / A.shape[-3], E / np.where(total == 0, 1.0, total))
        return E / np.where(total == 0, 1.0, total)

    def _values(self, place: str, V: Any, A: Any) -> Any:
        V, f = self._each(place, V, A.shape[-3], values=True), self.use("values", place)
        return self.off(f(V, A), np.abs(f(np.abs(V), np.abs(A)))) if self.epsilon else f(V, A)

    def recurrence(self, place: str, X: Named, prefix: str) -> Named:
        """Mamba-2 if θ has D, and otherwise the gated delta rule, with a decay for each row if θ has W_a1."""
        W = {n: self.p(prefix + n) for n in OF_HEADS.split()}
        is_mamba, of_rows = W["D"] is not None, W["W_a1"] is not None
        kind = "Mamba2" if is_mamba else "KimiDelta" if of_rows else "GatedDelta"

        def factor(letter: str) -> float:
            return self.use("mamba_factors", place)["qkvaz".index(letter)]

        read = [self._convolved(place, n, X, prefix, factor) for n in "qkv"]
        Q, K, V = (of.value for of in read)

        def through(name: str) -> Any:
            return self.product(W[f"W_{name}2"], self.product(W[f"W_{name}1"], X.value)[:, None])

        def through_time() -> Any:
            rows = through("a") if of_rows else factor("a") * self.product(W["W_a"], X.value)
            rate = np.log(1 + np.exp(self.sum(rows, W["b_a"][..., None])))
            rate = np.maximum(rate, self.use("delta_min", place)) if is_mamba else rate
            rate = rate if of_rows else rate[..., None, :]
            alpha, q, k = self.rounded(np.exp(-np.exp(W["a"][..., None, None]) * rate)), Q, K
            beta: Any = 0.0 * rate[..., 0, :]
            if not is_mamba:
                length = self.use("delta_lengths", place)
                q, k = (self.rounded(Y / length((Y * Y).sum(-2, keepdims=True))) for Y in (Q, K))
                q = q * self.use("delta_scale", place)(Q.shape[-2])
                beta = self.rounded(self.use("delta_rate", place) * sigma(self.product(W["W_b"], X.value)))
            v = rate * V if is_mamba else self.use("delta_new", place)(beta)[..., None, :] * V
            beta = beta if is_mamba else self.use("delta_corrected", place)(beta)
            q, k = (np.repeat(Y, V.shape[1] // Y.shape[1], axis=1) for Y in (q, k))
            return self._by_tokens(q, k, v, self.use("state_decay", place)(alpha), beta)

        O = self.line(Key(place, 10, "6", "Sᵀq"), through_time, read, parts=True)

        def written() -> Any:
            rows = through("z") if of_rows else factor("z") * self.product(W["W_z"], X.value[:, None])
            gate, gamma, Y = self.use("state_gate", place)(rows), W["gamma"], O.value
            if is_mamba:
                Y = self.rounded(Y + self.use("mamba_skip", place)(W["D"])[..., None, None] * V) * gate
                groups = 1 if self.use("mamba_groups", place) else Q.shape[1]
                Y = Y.reshape(len(Y), groups, -1, Y.shape[-1])
            if not self.use("state_norm", place):
                return self.product(W["W_out"], self.rounded(merged(Y)))
            Y = Y / self.use("norm_epsilon", f"{place}/o")((Y * Y).mean(-2, keepdims=True))
            if is_mamba:
                Y = merged(Y) * (1 if gamma is None else gamma[..., None])
            else:
                Y = merged(Y * gamma[:, None, :, None] * gate)
            return self.product(W["W_out"], self.rounded(Y))

        return self.line(Key(place, 10, "6", kind), written, [O, X])

    def rg_lru(self, place: str, X: Named, prefix: str) -> Named:
        """The real-gated linear recurrent unit."""
        W = {n: self.p(prefix + n) for n in RG_LRU.split()}

        def read() -> Any:
            rows = self.linear(W["W_x"], W["b_x"], X.value[:, None])
            return self.rounded(self._taps(rows, W["C"], W["b_c"]))

        U = self.line(Key(place, 10, "6", "u after its convolution"), read, [X], parts=True)

        def through_time() -> Any:
            u = U.value
            i, r = (sigma(self.linear(W[f"W_{gate}"], W[f"b_{gate}"], u)) for gate in "ir")
            i, r = self.use("lru_gates", place)(i, r)
            alpha = self.rounded(np.exp(-self.use("lru_decay", place)(r, W["a"][..., None])))
            new, h, columns = self.rounded(i * u), 0.0 * u[..., 0], []
            for t in range(u.shape[-1]):
                h = self.rounded(alpha[..., t] * h + self.use("lru_new", place)(alpha[..., t], t) * new[..., t])
                columns.append(h)
            return np.stack(columns, axis=-1)

        h = self.line(Key(place, 10, "6", "h"), through_time, [U], parts=True)

        def written() -> Any:
            gate = gelu_tanh(0.044715)(self.linear(W["W_y"], W["b_y"], X.value[:, None]))
            return self.linear(W["W_out"], W["b_out"], merged(self.rounded(h.value * gate)))

        return self.line(Key(place, 10, "6", "RGLRU"), written, [h, X])

    def short_convolution(self, place: str, X: Named, prefix: str) -> Named:
        """A short convolution between two gates."""
        W = {n: self.p(prefix + n) for n in SHORT.split()}

        def read() -> Any:
            rows, gate = (self.linear(W[f"W_{n}"], W[f"b_{n}"], X.value) for n in "xi")
            gated = self.rounded(self.use("gate_before", place)(gate) * rows)
            return self.rounded(self._taps(gated, W["C"], W["b_c"]))

        U = self.line(Key(place, 10, "6", "U after its convolution"), read, [X])

        def written() -> Any:
            gate = self.use("gate_behind", place)(self.linear(W["W_y"], W["b_y"], X.value))
            return self.linear(W["W_out"], W["b_out"], self.rounded(gate * U.value))

        return self.line(Key(place, 10, "6", "ShortConvolution"), written, [U, X])

    def _by_tokens(self, q: Any, k: Any, v: Any, alpha: Any, beta: Any) -> Any:
        """S ← α ⊙ S; S ← S + k (v − β Sᵀk)ᵀ; Sᵀq."""
        S, columns = 0.0 * k[..., :1] * np.swapaxes(v[..., :1], -1, -2), []
        for t in range(v.shape[-1]):
            S = alpha[..., t, None] * S
            corrected = v[..., t] - beta[..., t, None] * np.einsum("...kv,...k->...v", S, k[..., t])
            S = self.rounded(S + k[..., t][..., None] * corrected[..., None, :])
            columns.append(np.einsum("...kv,...k->...v", S, q[..., t]))
        return self.rounded(np.stack(columns, axis=-1))

    def _convolved(self, place: str, n: str, X: Named, prefix: str, factor: Callable[[str], float]) -> Named:
        """A projection of every head after its convolution over the last tokens, and SiLU."""

        def rows() -> Any:
            Y = factor(n) * self.product(self.p(f"{prefix}W_{n}"), X.value[:, None])
            return self.rounded(silu(self._taps(Y, self.p(f"{prefix}C_{n}"), self.p(f"{prefix}b_{n}"))))

        return self.line(Key(place, 10, "6", f"{n} after its convolution"), rows, [X], parts=True)

    def _taps(self, Y: Any, C: Any, b: Any) -> Any:
        """The sum of each row over the last tokens, weighted by C, and of b if there is one."""
        l, width = Y.shape[-1], C.shape[-1]
        padded = np.pad(Y, [(0, 0)] * (Y.ndim - 1) + [(width - 1, 0)])
        Y = self.sum(*(C[..., i, None] * padded[..., i : i + l] for i in range(width)))
        return Y if b is None else self.sum(Y, b[..., None] + 0 * Y)


def _stacked(A: Any, B: Any) -> Any:
    """The rows of A, and below them those of B, which may have other replicas or be of no head."""
    axes = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    return np.concatenate([np.broadcast_to(M, (*axes, *M.shape[-2:])) for M in (A, B)], axis=-2)
