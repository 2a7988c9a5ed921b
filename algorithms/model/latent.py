"""Multi-head latent attention, in place of Algorithm 5: all heads' keys and values come from one latent column."""

import dataclasses
import functools
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from algorithms.machinery.arrays import scaled
from algorithms.machinery.contract import array
from algorithms.machinery.naming import numbered
from algorithms.machinery.record import Range, serializable
from algorithms.model.attention import QKV, At, Attention
from algorithms.model.indexer import Indexer, IndexerParams
from algorithms.model.norm import RMSNorm
from algorithms.model.positions import Rotary
from algorithms.ops.linear import linear
from algorithms.parameters import AttentionParams, LayerNormParams, MHAttentionParams

Rows = Annotated[int, Range("a number of rows >= 1", lambda d: d >= 1)]


@serializable
class LatentParams(NamedTuple):
    """𝓦 of latent attention: the projections to the latents, with their norms, and from them; and of the output.

    W_qr and W_kr give the rotated rows. Without a latent of the queries there are no W_cq and norm_q, and ``index`` are
    the parameters of the indexer, if there is one.
    """

    W_cq: Array | None
    norm_q: LayerNormParams | None
    W_q: Array
    W_qr: Array
    W_c: Array
    norm_c: LayerNormParams
    W_kr: Array
    W_k: Array
    W_v: Array
    W_o: Array
    index: IndexerParams | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent(Attention):
    """Keys ``[W_k^h c; R W_kr Z]`` and values ``W_v^h c``, where ``c = norm(W_c Z)`` is the latent of a token.

    Queries are ``[W_q^h q; R W_qr^h q]``, where ``q = norm(W_cq X)``, or X. R rotates by the positions. A cache stores
    ``[c; R W_kr Z]`` alone, for all heads: ``(W_k c)ᵀ W_q q = cᵀ W_kᵀ W_q q``, so queries are multiplied by W_kᵀ, and
    the sum of latents by W_v. Whole sequences compute the keys and values, which takes fewer operations there. With an
    indexer, the cache has its keys, too, as further rows.

    Attributes:
        positions: of the rotated rows. If scaled by `Yarn`, the scores are, too. None: nothing is rotated.
        d_c: rows of the latent of keys and values.
        d_r: rows of queries and keys that are rotated, besides the d_attn that are not.
        d_q: rows of the latent of queries; None: they have none.
        norm: of the latents.
        indexer: chooses which tokens a token reads; None: it reads all.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", §2.1.
    """

    positions: Rotary | None = Rotary(pairs="neighbors")
    biases: bool = False
    d_c: Rows
    d_r: Rows
    d_q: Rows | None = None
    norm: RMSNorm = RMSNorm(epsilon=1e-6)
    indexer: Indexer | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nothing = dict.fromkeys(("normalize_heads", "normalize_output", "clip"))
        no = dict.fromkeys(("biases", "gated", "sinks", "heads_together", "positions_first"), False)
        for name, expected in {**no, **nothing}.items():
            if getattr(self, name) != expected:
                self.refuse(name, f"{expected}, since latent attention has none")
        if self.positions is not None:
            self.positions.rows(self.d_r)
        if self.indexer is not None and (self.d_q is None or self.indexer.d < self.d_r):
            self.refuse("indexer", f"one of at least d_r = {self.d_r} rows, and a d_q, or None")

    def shapes(self) -> LatentParams:
        """The shapes of 𝓦."""
        d_q = "d_e" if self.d_q is None else "d_q"
        return LatentParams(
            W_cq=array("d_q d_e", self.d_q),
            norm_q=None if self.d_q is None else self.norm.shapes("d_q"),
            W_q=array(f"H d_attn {d_q}"),
            W_qr=array(f"H d_r {d_q}"),
            W_c=array("d_c d_e"),
            norm_c=self.norm.shapes("d_c"),
            W_kr=array("d_r d_e"),
            W_k=array("H d_attn d_c"),
            W_v=array("H d_mid d_c"),
            W_o=array("d_e H*d_mid"),
            index=self.indexer and self.indexer.shapes(),
        )

    def sizes(self) -> dict[str, int]:
        """The numbers of rows of the latents, and of what is rotated."""
        sizes = {"d_c": self.d_c, "d_r": self.d_r} | ({} if self.d_q is None else {"d_q": self.d_q})
        return sizes | ({} if self.indexer is None else {"N_index": self.indexer.n, "d_index": self.indexer.d})

    @numbered
    def inputs(self, at: At) -> tuple[Any, Any, MHAttentionParams]:
        """The latents of queries, and of keys and values, and the matrices that multiply them."""
        W, X = at.W, at.X
        q = X if W.W_cq is None else self.norm(linear(W.W_cq, X), W.norm_q)
        c = self.norm(linear(W.W_c, at.Z), W.norm_c)  # inside
        return q, c, MHAttentionParams(AttentionParams(W.W_q, None, W.W_k, None, W.W_v, None), W.W_o, None)

    def read(self, Q: Any, K: Any, V: Any, at: At) -> QKV:
        """With the rotated rows, and the latents that a cache stores instead of keys and values."""
        W, (q, c, _), Q_c, K_c = at.W, at.inputs, Q, K
        Q_r = linear(W.W_qr, q)
        K_r = linear(W.W_kr, at.Z)[None]
        if self.positions is not None:
            Q_r, K_r = self.positions(Q_r, at.t_x), self.positions(K_r, at.t_z)
        Q = scaled(jnp.concatenate([Q_c, Q_r], axis=1), self._factor(W, W.W_q.shape[1] + self.d_r))
        K = jnp.concatenate([K_c, jnp.broadcast_to(K_r, (len(K_c), *K_r.shape[1:]))], axis=1)

        of_latents = [jnp.einsum("hac,ha...->hc...", W.W_k, Q_c), Q_r]
        latents, chosen, indexer = [c[None], K_r], None, self.indexer
        if indexer is not None:
            where = W.index, self.positions, self.d_r
            latents.append(indexer.keys(at.Z, *where, at.t_z))
            of_latents.append(jnp.zeros((len(Q_r), *latents[-1].shape[1:2], *Q_r.shape[2:]), Q_r.dtype))
            chosen = functools.partial(indexer.chosen, indexer.index(q, at.X, *where, at.t_x))
        latents, of_latents = (jnp.concatenate(rows, axis=1) for rows in (latents, of_latents))
        of_latents = scaled(of_latents, self._factor(W, latents.shape[1]))
        cached = QKV(of_latents, latents, latents[:, :0], uncached=QKV(Q, K, V), chosen=chosen)
        return cached._replace(result=lambda Y: self._values(Y, W))

    def _factor(self, W: Any, rows: int) -> float:
        """The factor of queries with this many rows, whose scores will be divided by its root."""
        scale = (W.W_q.shape[1] + self.d_r) ** -0.5 if self.scale is None else self.scale
        scaling = getattr(self.positions, "scaling", None)
        return scale * rows**0.5 * getattr(scaling, "of_scores", 1.0)

    def _values(self, Y: Any, W: Any) -> Any:
        return jnp.einsum("hmc,hc...->hm...", W.W_v, Y[:, : self.d_c])
