"""What some models have in place of Algorithm 5, token by token: the gated delta rule."""

from typing import Any

import numpy as np

from .attention import Attention
from .catalogue import merged
from .parts import Named, sigmoid, silu
from .run import Key

__all__ = ["Recurrence"]

LENGTH = 1e-6
"""What the gated delta rule adds to the square of the length of queries and keys."""


class Recurrence(Attention):
    """Attention of X to Z, or a recurrence over X."""

    def delta(self, place: str, X: Any, kx: Key, prefix: str) -> Named:
        """The gated delta rule."""
        W = {n: self.p(prefix + n) for n in ("W_z", "W_b", "W_a", "b_a", "a", "gamma", "W_out")}
        kq, kk, kv = (Key(place, 10, "6", f"{letter} after its convolution") for letter in "qkv")
        Q, K, V = (
            self.line(key, lambda n=n: self._convolved(prefix, n, X), [kx], parts=True)
            for n, key in (("q", kq), ("k", kk), ("v", kv))
        )
        ks, ko = Key(place, 10, "6", "Sᵀq"), Key(place, 10, "6", "GatedDelta")

        def read() -> Any:
            q, k = (self.rounded(Y / np.sqrt((Y * Y).sum(-2, keepdims=True) + LENGTH)) for Y in (Q, K))
            q, k = (np.repeat(Y, V.shape[1] // Y.shape[1], axis=1) for Y in (q * Q.shape[-2] ** -0.5, k))
            rate = np.log(1 + np.exp(self.sum(self.product(W["W_a"], X), W["b_a"][..., None])))
            alpha = self.rounded(np.exp(-np.exp(W["a"][..., None]) * rate))
            beta = self.rounded(sigmoid(self.product(W["W_b"], X)))
            S, columns = 0.0 * k[..., :1] * np.swapaxes(V[..., :1], -1, -2), []
            for t in range(X.shape[-1]):
                S = alpha[..., t, None, None] * S
                v = beta[..., t, None] * (V[..., t] - np.einsum("...kv,...k->...v", S, k[..., t]))
                S = self.rounded(S + k[..., t][..., None] * v[..., None, :])
                columns.append(np.einsum("...kv,...k->...v", S, q[..., t]))
            return self.rounded(np.stack(columns, axis=-1))

        O = self.line(ks, read, [kq, kk, kv], parts=True)

        def written() -> Any:
            root = self.use("norm_epsilon", f"{place}/o")((O * O).mean(-2, keepdims=True))
            gated = O / root * W["gamma"][:, None, :, None] * silu(self.product(W["W_z"], X[:, None]))
            return self.product(W["W_out"], merged(self.rounded(gated)))

        return self.line(ko, written, [ks, kx]), ko

    def _convolved(self, prefix: str, letter: str, X: Any) -> Any:
        """A projection of every head after its convolution over the last tokens, and SiLU."""
        Y, C = self.product(self.p(f"{prefix}W_{letter}"), X[:, None]), self.p(f"{prefix}C_{letter}")
        width, l = C.shape[-1], X.shape[-1]
        padded = np.pad(Y, [(0, 0)] * (Y.ndim - 1) + [(width - 1, 0)])
        return self.rounded(silu(self.sum(*(C[..., i, None] * padded[..., i : i + l] for i in range(width)))))
