"""Custom lines that mix columns, which caches and packed documents refuse, and weights that see an order."""

import dataclasses

import jax
import jax.numpy as jnp

from algorithms.lines import MLP, Attention, RMSNorm


def tapped(a, tap, share):
    """Each column, and a share of the one that many before it, or after it if the number is negative."""
    l = a.shape[-1]
    moved = jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(max(tap, 0), max(-tap, 0))])
    return a + share * (moved[..., :l] if tap > 0 else moved[..., -tap : l - tap])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbors(Attention):
    """Keys with a share of another column's."""

    tap: int
    share: float = 1.0

    def read(self, Q, K, V, at):
        read = super().read(Q, K, V, at)
        return read._replace(K=tapped(read.K, self.tap, self.share))


class FourBack(Neighbors):
    """The same for values."""

    def read(self, Q, K, V, at):
        read = Attention.read(self, Q, K, V, at)
        return read._replace(V=tapped(read.V, self.tap, self.share))


class Later(Neighbors):
    """The same for queries."""

    def read(self, Q, K, V, at):
        read = Attention.read(self, Q, K, V, at)
        return read._replace(Q=tapped(read.Q, self.tap, self.share))


class Far(Neighbors):
    """The same for the result."""

    def read(self, Q, K, V, at):
        return Attention.read(self, Q, K, V, at)

    def result(self, Y, at):
        return super().result(tapped(Y, self.tap, self.share), at)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution(MLP):
    """An MLP of each column and the one before it."""

    def __call__(self, X, W, **options):
        return super().__call__(tapped(X, 1, 0.04), W, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbered(MLP):
    """An MLP that counts columns, which in a step are always one."""

    def __call__(self, X, W, **options):
        counted = 1 + jnp.arange(X.shape[-1]).reshape(*(1,) * (X.ndim - 1), -1)
        return super().__call__(X, W, **options) * counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooled(RMSNorm):
    """A norm that subtracts the mean of all columns."""

    def __call__(self, X, norm):
        return super().__call__(X - X.mean(-1, keepdims=True), norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordered(Attention):
    """A forgetting transformer: scores decay by the gates of the tokens in between."""

    def read(self, Q, K, V, at):
        read = super().read(Q, K, V, at)
        return read._replace(own=(jax.nn.log_sigmoid(read.Q[:, 0]), at.W.W_o[: len(read.Q), 0]))

    def weights(self, S, own):
        total = jnp.cumsum(own[0])
        return jax.nn.softmax(S + own[1] * (total[None, :] - total[:, None]), axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StickBreaking(Attention):
    """Each key, from the newest on, takes a share of what the newer ones leave."""

    def weights(self, S, own):
        seen = jnp.isfinite(S)
        S = jnp.where(seen, S, 0)
        left = jnp.where(seen, jax.nn.log_sigmoid(-S), 0)
        newer = jnp.cumsum(left[::-1], 0)[::-1] - left
        return jnp.where(seen, jnp.exp(jax.nn.log_sigmoid(S) + newer), 0)
