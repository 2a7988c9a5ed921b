"""Line 6 of Algorithm 10, line 5 of Algorithm 9, and lines 5, 14 and 16 of Algorithm 8: the attention."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from jax import Array
from jaxtyping import Float, Key

from algorithms.alg03_attention import Hooks, mh_attention
from algorithms.machinery.annotations import Range
from algorithms.machinery.arrays import indices
from algorithms.masks import Mask, banded
from algorithms.model.distances import NO_TABLE, ALiBi, ByDistance, Distances, Table, TransformerXL
from algorithms.model.line import Line
from algorithms.model.norm import LayerNorm, RMSNorm
from algorithms.model.positions import Rotary
from algorithms.notation import Cap
from algorithms.ops.linear import linear
from algorithms.parameters import MHAttentionParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(Line):
    """``MHAttention(X, Z | 𝓦, Mask)``, Algorithm 5. If 𝓦 has fewer heads of keys and values, queries share them.

    The mask is the algorithm's or the caller's; the line narrows it to a window.

    Attributes:
        positions: how queries, keys or scores depend on the positions of the tokens; None: not at all.
        scale: factor of the scores; None: 1/√d_attn.
        cap: c: scaled scores s become ``c tanh(s/c)``; None: no cap.
        window: number of tokens that a token attends to, itself included: t_x − window < t_z; None: all.
        biases: whether there are biases: all, none, only b_q, b_k and b_v, or only b_o.
        normalize_heads: a norm of queries and keys, applied before their positions.
        heads_together: whether that norm is over all heads together, as in OLMo 2.
        normalize_output: a norm of the result, before it is added to the residual stream.
    """

    positions: Rotary | Distances | ALiBi | TransformerXL | None = None
    scale: Annotated[float | None, Range("a number > 0", lambda scale: scale > 0)] = None
    cap: Cap = None
    window: Annotated[int | None, Range("a width of at least 1 token", lambda width: width >= 1)] = None
    biases: bool | Literal["qkv", "out"] = True
    normalize_heads: RMSNorm | None = None
    heads_together: bool = False
    normalize_output: LayerNorm | None = None

    optional: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("b_q", "b_k", "b_v"), "biases=True,qkv"),
        "b_o": "biases=True,out",
        "gamma_q": "normalize_heads",
        "gamma_k": "normalize_heads",
        "norm_out": "normalize_output",
        **dict.fromkeys(("W_r", "u", "v"), "never"),
    }

    def queries(self, Q: Float[Array, "H d_attn *columns"], W: Any, t: Any, implementation: Any) -> Array:
        """Q as line 4 of Algorithm 4 reads it: normalized, placed at the positions t, and scaled."""
        Q = self._placed(Q, W.gamma_q, t, implementation)
        Q = self.positions.contents(Q, W) if isinstance(self.positions, ByDistance) else Q
        return Q if self.scale is None else Q * (self.scale * Q.shape[1] ** 0.5)

    def keys(self, K: Float[Array, "H d_attn *columns"], W: Any, t: Any, implementation: Any) -> Array:
        """K as line 4 of Algorithm 4 reads it and a cache stores it: normalized and placed at the positions t."""
        return self._placed(K, W.gamma_k, t, implementation)

    def _placed(self, Q, gamma, t, implementation):
        if self.normalize_heads is not None:
            Q = self.normalize_heads.of_heads(Q, gamma, implementation)
        return self.positions(Q, t, implementation) if isinstance(self.positions, Rotary) else Q

    def distant(self, Q: Float[Array, "H d_attn *columns"], W: Any, implementation: Any) -> Array:
        """U of ``scores_by_distance``, computed from the queries; for ``positions`` that depend on the distance."""
        Q = self._placed(Q, W.gamma_q, None, implementation)
        by_distance: Any = self.positions
        return by_distance.queries(Q, W, 1.0 if self.scale is None else self.scale * Q.shape[1] ** 0.5)

    def windowed(self, mask: Mask) -> Mask:
        """The mask, within the window."""
        return mask if self.window is None else mask & banded(self.window)

    def output(self, V_tilde: Float[Array, "d_e *columns"], W: Any, implementation: Any) -> Array:
        """The result of Algorithm 5, normalized if the line says so."""
        return V_tilde if self.normalize_output is None else self.normalize_output(V_tilde, W.norm_out, implementation)

    def __call__(
        self,
        X: Float[Array, "d_e *batch l_x"],
        Z: Float[Array, "d_e *#batch l_z"],
        W: MHAttentionParams,
        mask: Mask,
        *,
        t_x: Any,
        t_z: Any,
        implementation: Any,
        rate: float = 0.0,
        key: Key[Array, "*batch"] | None = None,
        table: Table = NO_TABLE,
    ) -> Float[Array, "d_e *batch l_x"]:
        """The attention of tokens at the positions t_x to tokens at t_z; ``key`` draws the attention weights to drop.

        t_z is None if X and Z are different sequences; t_x may be None if ``positions`` is.
        """
        P = None if t_z is None else table.positions

        def read(Q, W_q):
            return Q if P is None else Q + linear(W_q, P, None, implementation)

        def by_distance(Q, l_z):
            if not isinstance(self.positions, ByDistance) or t_z is None:
                return ()
            distances = indices(l_z + Q.shape[-1]) - (Q.shape[-1] - 1)
            return self.distant(read(Q, W.heads.W_q), W, implementation), self.positions.keys(distances, W, table, Q)

        hooks = Hooks(
            queries=lambda Q: self.queries(read(Q, W.heads.W_q), W, t_x, implementation),
            keys=lambda K: self.keys(read(K, W.heads.W_k), W, t_z, implementation),
            cap=self.cap,
            by_distance=by_distance,
        )
        options: dict[str, Any] = {"implementation": implementation, "dropout": rate, "key": key, "hooks": hooks}
        return self.output(mh_attention(X, Z, W, self.windowed(mask), **options), W, implementation)
