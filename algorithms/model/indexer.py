"""An indexer: a few small heads choose which tokens the attention of line 6 of Algorithm 10 reads."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.contract import array
from algorithms.machinery.record import Count, Record, serializable
from algorithms.masks import Mask, StructuralMask
from algorithms.model.norm import LayerNorm
from algorithms.model.positions import Rotary
from algorithms.ops.linear import linear
from algorithms.parameters import LayerNormParams

NORM = LayerNorm(epsilon=1e-6)


@serializable
class IndexerParams(NamedTuple):
    """The projections of the queries, of the keys, with their norm, and of the weights of heads."""

    W_q: Array
    W_k: Array
    norm_k: LayerNormParams
    W_w: Array


class Index(NamedTuple):
    """An indexer's queries and weights for the columns of X."""

    Q: Float[Array, "n d *columns"]
    w: Float[Array, "n *columns"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Indexer(Record):
    """A token reads the k tokens z with the largest ``I[z, x] = Σ_h w_h ReLU(k_zᵀ q_h)``, and ties with the last.

    Of those that the mask permits; all, if they are at most k. Queries are ``W_q^h q``, of the queries' latent, keys
    ``norm(W_k Z)``, which all heads share, and weights W_w X. The first rows of queries and keys are rotated, as many
    as attention rotates. The choice has no gradient.

    Attributes:
        n: number of heads.
        d: rows of a query and a key.
        k: number of tokens.
        pairs: which rows the rotation pairs, see `Rotary`.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2", equation (1).
    """

    n: Count
    d: Count
    k: Count
    pairs: Literal["halves", "neighbors"] = "halves"

    def shapes(self) -> IndexerParams:
        """The shapes of its parameters."""
        norm = NORM.shapes("d_index")
        return IndexerParams(array("N_index d_index d_q"), array("d_index d_e"), norm, array("N_index d_e"))

    def keys(
        self, Z: Float[Array, "d_e *columns"], W: IndexerParams, positions: Rotary | None, d_r: int, t: Any
    ) -> Float[Array, "1 d *columns"]:
        """The keys; a cache stores them as d further rows."""
        return self._rotated(NORM(linear(W.W_k, Z), W.norm_k)[None], positions, d_r, t)

    def index(self, q: Any, X: Any, W: IndexerParams, positions: Rotary | None, d_r: int, t: Any) -> Index:
        """Queries and weights, without a gradient."""
        Q, w = self._rotated(linear(W.W_q, q), positions, d_r, t), linear(W.W_w, X)
        return jax.lax.stop_gradient(Index(Q, w))

    def chosen(
        self, index: Index, mask: Mask, K: Float[Array, "1 rows *batch l_z"]
    ) -> StructuralMask | Bool[Array, "*batch l_z l_x"]:
        """The mask, False for all but the chosen tokens. The last d rows of K are the indexer's keys.

        Q may lack the axis of columns, if there is one of each.
        """
        if K.shape[-1] <= self.k:
            return mask
        K, (Q, w) = jax.lax.stop_gradient(K[0, -self.d :]), index
        Q, w = (Q, w) if Q.ndim > K.ndim else (Q[..., None], w[..., None])
        dtype = accumulation_dtype(Q.dtype)

        def add(I, of_head):
            q, w = of_head
            S = jnp.einsum("d...z,d...x->...zx", K, q, preferred_element_type=dtype)
            return I + w[..., None, :] * jax.nn.relu(S), None

        I = jax.lax.scan(add, jnp.zeros((*K.shape[1:], Q.shape[-1]), dtype), (Q, w.astype(dtype)))[0]
        seen = mask.dense(K.shape[-1], Q.shape[-1]) if isinstance(mask, StructuralMask) else mask
        seen = jnp.broadcast_to(seen, I.shape)
        I = jnp.where(seen, I, -jnp.inf)
        least = jax.lax.top_k(jnp.swapaxes(I, -1, -2), self.k)[0][..., -1]
        return seen & (least[..., None, :] <= I)

    def _rotated(self, Y: Any, positions: Rotary | None, d_r: int, t: Any) -> Any:
        if positions is None:
            return Y
        return jnp.concatenate([positions.but(pairs=self.pairs).rotate(Y[:, :d_r], t), Y[:, d_r:]], axis=1)
