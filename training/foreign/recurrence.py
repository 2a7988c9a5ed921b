"""Recurrences in place of Algorithm 5, token by token: the gated delta rule, Mamba-2, the RG-LRU and a short
convolution.
"""

from typing import Any

import numpy as np

from training.oracle.lines import sigma

from .attention import Attention
from .catalogue import gelu_tanh, merged, silu
from .run import Key, Named

__all__ = ["Recurrence"]

OF_HEADS = "W_z W_z1 W_z2 W_b W_a W_a1 W_a2 b_a a D gamma W_out"
RG_LRU = "W_x b_x W_y b_y C b_c W_i b_i W_r b_r a W_out b_out"
SHORT = "W_x b_x W_i b_i W_y b_y C b_c W_out b_out"


class Recurrence(Attention):
    """Attention of X to Z, or a recurrence over X."""

    def recurrence(self, place: str, X: Named, prefix: str) -> Named:
        """Mamba-2 if θ has D, and otherwise the gated delta rule, with a decay for each row if θ has W_a1."""
        W = {n: self.p(prefix + n) for n in OF_HEADS.split()}
        is_mamba, of_rows = W["D"] is not None, W["W_a1"] is not None
        kind = "Mamba2" if is_mamba else "KimiDelta" if of_rows else "GatedDelta"

        def factor(letter: str) -> float:
            return self.use("mamba_factors", place)["qkvaz".index(letter)]

        read = [
            self.line(
                Key(place, 10, "6", f"{n} after its convolution"),
                lambda n=n: self._convolved(prefix, n, X.value, factor(n)),
                [X],
                parts=True,
            )
            for n in "qkv"
        ]
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
                q, k = (
                    self.rounded(Y / self.use("delta_lengths", place)((Y * Y).sum(-2, keepdims=True))) for Y in (Q, K)
                )
                q, beta = (
                    q * self.use("delta_scale", place)(Q.shape[-2]),
                    self.rounded(self.use("delta_rate", place) * sigma(self.product(W["W_b"], X.value))),
                )
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

        def column(name: str, M: Any, of: Any) -> Any:
            return self.sum(M, W[name][..., None] + 0 * of)

        def read() -> Any:
            rows = self.product(W["W_x"], X.value[:, None])
            return self.rounded(column("b_c", self._taps(column("b_x", rows, rows), W["C"]), rows))

        U = self.line(Key(place, 10, "6", "u after its convolution"), read, [X], parts=True)

        def through_time() -> Any:
            u = U.value
            i, r = (sigma(column(f"b_{gate}", self.product(W[f"W_{gate}"], u), u)) for gate in "ir")
            i, r = self.use("lru_gates", place)(i, r)
            alpha = self.rounded(np.exp(-self.use("lru_decay", place)(r, W["a"][..., None])))
            new, h, columns = self.rounded(i * u), 0.0 * u[..., 0], []
            for t in range(u.shape[-1]):
                h = self.rounded(alpha[..., t] * h + self.use("lru_new", place)(alpha[..., t], t) * new[..., t])
                columns.append(h)
            return np.stack(columns, axis=-1)

        h = self.line(Key(place, 10, "6", "h"), through_time, [U], parts=True)

        def written() -> Any:
            rows = self.product(W["W_y"], X.value[:, None])
            Y = merged(self.rounded(h.value * gelu_tanh(0.044715)(column("b_y", rows, rows))))
            product = self.product(W["W_out"], Y)
            return self.sum(product, W["b_out"][..., None] + 0 * product)

        return self.line(Key(place, 10, "6", "RGLRU"), written, [h, X])

    def short_convolution(self, place: str, X: Named, prefix: str) -> Named:
        """A short convolution between two gates."""
        W = {n: self.p(prefix + n) for n in SHORT.split()}

        def column(name: str, M: Any) -> Any:
            return M if W[name] is None else self.sum(M, W[name][..., None] + 0 * M)

        def read() -> Any:
            rows, gate = (column(f"b_{n}", self.product(W[f"W_{n}"], X.value)) for n in "xi")
            gated = self.rounded(self.use("gate_before", place)(gate) * rows)
            return self.rounded(column("b_c", self._taps(gated, W["C"])))

        U = self.line(Key(place, 10, "6", "U after its convolution"), read, [X])

        def written() -> Any:
            gate = self.use("gate_behind", place)(column("b_y", self.product(W["W_y"], X.value)))
            return column("b_out", self.product(W["W_out"], self.rounded(gate * U.value)))

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

    def _convolved(self, prefix: str, letter: str, X: Any, factor: float) -> Any:
        """A projection of every head after its convolution over the last tokens, with a bias if there is one, and SiLU."""
        W, C, b = (self.p(f"{prefix}{name}_{letter}") for name in "WCb")
        Y = self._taps(factor * self.product(W, X[:, None]), C)
        return self.rounded(silu(Y if b is None else self.sum(Y, b[..., None] + 0 * Y)))

    def _taps(self, Y: Any, C: Any) -> Any:
        """The sum of each row over the last tokens, weighted by C."""
        l, width = Y.shape[-1], C.shape[-1]
        padded = np.pad(Y, [(0, 0)] * (Y.ndim - 1) + [(width - 1, 0)])
        return self.sum(*(C[..., i, None] * padded[..., i : i + l] for i in range(width)))
