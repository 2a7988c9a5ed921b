"""The weights of an attention, laid out for one column at a time, and what it reads of one."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from algorithms import AttentionParams, MHAttentionParams
from algorithms.lines import Attention
from algorithms.machinery.options import using
from algorithms.model.attention import QKV
from algorithms.model.mixer import MixerMetadata
from algorithms.model.positions import DistanceTable
from algorithms.ops.linear import product
from training.generation.quantized import QuantizedMatrix


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Projections:
    """The weights of one attention, laid out so that one product projects a column for all heads."""

    W: Any  # [rows, d_e]: W_q of all heads, and for self-attention those of W_k and W_v that there are below it
    b: tuple[Any, ...]  # the biases of each of these, or None
    W_o: Any  # [d_out, H*d_mid], the output projection
    b_o: Any  # its bias, or None
    gamma_q: Any  # the scale of the norm of queries, as in `MHAttentionParams`
    gamma_k: Any  # the scale of the norm of keys
    norm_out: Any  # the norm of the output
    W_r: Any  # Transformer-XL's projection of distances
    u: Any  # its bias of queries for the product with keys
    v: Any  # its bias of queries for the product with distances
    s: Any  # the sinks
    of_positions: Any  # the parameters of positions of one's own
    W_g: Any  # the projection of the gate of what the heads give
    rows: tuple[tuple[int, int], ...] = dataclasses.field(metadata={"static": True})  # heads, and rows per head, in W

    @staticmethod
    def of(params: MHAttentionParams, *, context: bool) -> "Projections":
        """Lay out weights for self-attention or, if ``context``, for a context whose keys and values are known."""
        h = params.heads
        own = ((h.W_q, h.b_q), (h.W_k, h.b_k), (h.W_v, h.b_v))
        W, b = zip(*(pair for pair in own[: 1 if context else 3] if pair[0] is not None), strict=True)
        of_all = QuantizedMatrix.stacked(W) if isinstance(W[0], QuantizedMatrix) else _stacked(*W)
        return Projections(of_all, b, *params[1:], rows=tuple((a.shape[0], a.shape[1]) for a in W))

    @property
    def printed(self) -> MHAttentionParams:
        """The parameters of Algorithm 5, whose matrices multiply a column together; None for a known context's."""
        found: dict[int, Any] = {}

        def times(X, i):
            if id(X) not in found:
                ends = np.cumsum([H * d for H, d in self.rows])[:-1]
                of_each = zip(jnp.split(product(self.W, X), ends), self.rows, strict=True)
                found[id(X)] = X, [Y.reshape(*n, *X.shape[1:]) for Y, n in of_each]
            return found[id(X)][1][i]

        n = len(self.rows)
        W: list[Any] = [_Part(lambda X, dtype, i=i: times(X, i) if i < n else None) for i in range(3)]
        b: Any = (*self.b, None, None)[:3]
        heads = AttentionParams(*(part for pair in zip(W, b, strict=True) for part in pair))
        return MHAttentionParams(heads, self.W_o, self.b_o, norm_out=self.norm_out)


class _Part(NamedTuple):
    """The rows of one matrix in `Projections`."""

    times: Callable[..., Any]  # the product of these rows and columns
    ndim: int = 3


def read_of_a_column(line: Attention, W: Any, d_e: int, dtype: Any, table: Any = None) -> QKV:
    """Return what an attention reads of a column of zeros: for its shapes, and for the keys of distances."""
    X, t = jnp.zeros((d_e, 1), dtype), jnp.zeros(1, jnp.int32)
    with using(implementation="paper"):
        return line.reading(X, W, MixerMetadata(t, DistanceTable(table)))


def has_cache(line: Any) -> bool:
    """Return whether a mixer is an attention with keys and values of its own."""
    return isinstance(line, Attention) and line.keys_of is None


def sizes_of_heads(line: Attention, W: Any, d_e: int, dtype: Any) -> tuple[int, int, int, int]:
    """Return the number of heads of queries, and of keys and values, and the rows of a key and of a value."""
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), W))
    return _sizes_of_heads(line, tree, tuple(leaves), d_e, dtype)


@functools.cache
def _sizes_of_heads(line: Attention, tree: Any, leaves: tuple[jax.ShapeDtypeStruct, ...], d_e: int, dtype: Any) -> Any:
    Q, K, V = jax.eval_shape(lambda W: read_of_a_column(line, W, d_e, dtype)[:3], tree.unflatten(leaves))
    return Q.shape[0], K.shape[0], K.shape[1], V.shape[1]


@jax.jit
def _stacked(*W: Float[Array, "H _ d_e"]) -> Float[Array, "rows d_e"]:
    return jnp.concatenate([a.reshape(-1, a.shape[-1]) for a in W])
