"""From the products KᵀQ to the scores: mask, cap, distances, sinks and dropout, and their backward pass.

Every rule reads the same record, `Scores`, and computes it by blocks. Only their shapes differ between the rules: all
scores at once, square blocks, or strips.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import dynamic_slice_in_dim
from jaxtyping import Bool, Float, UInt32

from algorithms.machinery.arrays import accumulation_dtype, in_rows
from algorithms.masks import Mask, StructuralMask, depends_on_position, divisible_axes
from algorithms.ops.dropout import keep_mask
from algorithms.ops.softmax import capped, capped_derivative

ByDistance = tuple[Array, ...]
"""U ``[H, d_r, B, l_x]`` and P ``[H, d_r, n]`` of ``scores_by_distance``, or nothing."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
    """``C = c tanh((KᵀQ + D)/(c √d_attn))``, −∞ where the mask is False, of every head and sequence, or of one tile.

    A sink is one more score for each column, of a value that is 0. In float32 at least. Gradients, and what `axes`
    returns, are records of the same kind.
    """

    mask: Any  # a `Mask`, whose arrays have a leading axis B if the sequences have different masks
    seeds: Any = None  # of the dropout, for each head and sequence, ``[H, B, 2]``; None: nothing is dropped
    by_distance: tuple[Any, ...] = ()  # U and P, which give D
    sinks: Any = None  # ``[H]``, or None
    dropout: float = dataclasses.field(default=0.0, metadata={"static": True})  # of attention weights
    cap: float | None = dataclasses.field(default=None, metadata={"static": True})  # c; None: KᵀQ + D over √d_attn

    def of_tile(self, mask: Mask, seed: UInt32[Array, "2"] | None, by_distance: Any) -> "Scores":
        """The scores of one tile, without sinks, which `tiles.kernel` adds."""
        return dataclasses.replace(self, mask=mask, seeds=seed, by_distance=tuple(by_distance), sinks=None)

    def counted_from(self, first: Array, l_z: int) -> "Scores":
        """The scores of queries from position ``first`` of their sequence on."""
        by_distance, mask, seeds = self.by_distance, self.mask, self.seeds
        if by_distance:
            U, P = by_distance
            l_x, n = U.shape[-1], P.shape[-1]
            by_distance = U, dynamic_slice_in_dim(P, n - l_z - l_x - first, l_z + l_x, 2)
        if isinstance(mask, StructuralMask) and depends_on_position(mask):
            mask = dataclasses.replace(mask, first=first if mask.first is None else mask.first + first)
        seeds = None if seeds is None else seeds.at[..., 1].add(first.astype(seeds.dtype))
        return dataclasses.replace(self, mask=mask, seeds=seeds, by_distance=by_distance)

    def axes(self) -> "Scores":
        """The record with the axes of heads, of sequences and of queries in place of each array, None for no axis."""
        axes: Any = {
            "mask": jax.tree.map(lambda a: (None, *a), divisible_axes(self.mask), is_leaf=lambda a: type(a) is tuple),
            "seeds": None if self.seeds is None else (0, 1, None),
            "by_distance": ((0, 2, 3), (0, None, None))[: len(self.by_distance)],
            "sinks": None if self.sinks is None else (0, None, None),
        }
        return dataclasses.replace(self, **axes)

    def block(self, z: "Part", x: "Part", l_x: int, *, turned: bool = False) -> "Block":
        """The scores of a tile's tokens z of the context and x of the l_x queries, ``[x, z]`` if ``turned``."""
        t_z, t_x = z.tokens(), x.tokens()
        if isinstance(self.mask, StructuralMask):
            mask = self.mask.permits(*((t_z[None, :], t_x[:, None]) if turned else (t_z[:, None], t_x[None, :])))
        else:
            mask = x.of(z.of(self.mask, 0), 1)
            mask = mask.T if turned else mask
        keep: Any = 1
        if self.seeds is not None:
            seed, rows, columns = (self.seeds[::-1], t_x, t_z) if turned else (self.seeds, t_z, t_x)
            keep = jnp.where(keep_mask(seed, self.dropout, rows, columns), 1 / (1 - self.dropout), 0)
        U_P = self.by_distance
        if U_P:
            U_P = x.of(U_P[0], 1), Part(self.first_distance(z, x, l_x), z.n + x.n).of(U_P[1], 1)
        return Block(mask, keep, U_P, self.cap, turned)

    @staticmethod
    def first_distance(z: "Part", x: "Part", l_x: int) -> Any:
        """The first column of P that a block needs."""
        return z.first + l_x - x.first - x.n


class Part(NamedTuple):
    """n consecutive tokens."""

    first: Any
    n: int

    def tokens(self) -> Any:
        """Their indices."""
        return self.first + jnp.arange(self.n)

    def of(self, a: Array, axis: int) -> Array:
        """Their part of an array."""
        return a if a.shape[axis] == self.n else dynamic_slice_in_dim(a, self.first, self.n, axis)


class Block(NamedTuple):
    """Some of the scores of a tile, ``[z, x]``; ``[x, z]`` if they are turned."""

    mask: Bool[Array, "rows columns"]
    keep: Any  # D: 0 where an attention weight is dropped, 1/(1 − rate) where it is kept; 1 without dropout
    U_P: tuple[Array, ...]
    cap: float | None
    turned: bool

    def scaled(self, Q: Float[Array, "d_attn x"], K: Float[Array, "d_attn z"]) -> Float[Array, "rows columns"]:
        """``S/√d_attn`` with S = KᵀQ, and the scores by distance. Scaling Q instead would round it, if it is narrow."""
        factors = (transposed(Q), K) if self.turned else (K.T, Q)
        S = jnp.matmul(*factors, preferred_element_type=accumulation_dtype(Q.dtype))
        if self.U_P:
            by_distance = scores_by_distance(*self.U_P, dtype=S.dtype)
            S = S + (by_distance.T if self.turned else by_distance)
        return S * len(Q) ** -0.5

    def masked(self, S: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
        """Scaled scores, capped, and −∞ where the mask is False."""
        return jnp.where(self.mask, capped(S, self.cap), -jnp.inf)

    def backward(
        self,
        S: Any,
        A: Float[Array, "rows columns"],
        g: Float[Array, "rows columns"],
        delta: Float[Array, "#rows #columns"],
    ) -> Float[Array, "rows columns"]:
        """``√d_attn ∂F/∂S = A ⊙ (g − δ)`` for g = D ⊙ VᵀE, in which δ is aᵀg of each column.

        D is 1, or with dropout 0 or 1/(1 − rate), drawn again from the seed. With a cap c, the scores are
        C = c tanh(S/(c √d_attn)), and ∂F/∂S has the factor 1 − C²/c². Scores by distance are part of S; their rule is
        `by_distance_backward`. The mask needs no term, since A is 0 where it is False.
        """
        dS = A * (g - delta)
        return dS if self.cap is None else dS * capped_derivative(S, self.cap)

    def by_distance_backward(self, dS: Float[Array, "rows columns"]) -> tuple[Array, ...]:
        """∂F/∂U and ∂F/∂P, or nothing."""
        return scores_by_distance_backward(*self.U_P, dS=dS.T if self.turned else dS) if self.U_P else ()


def transposed(a: Array) -> Array:
    """aᵀ; row-major for narrow floats, which XLA would otherwise widen."""
    return a.T if a.dtype == accumulation_dtype(a.dtype) else in_rows(a.T)


def gathered_by_distance(U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], l_z: int) -> Float[Array, "l_z l_x"]:
    """``S[t_z, t_x] = P[:, k]ᵀ U[:, t_x]`` with ``k = t_z − t_x + l_x − 1``, added to the scores of contents.

    P ``[d_r, l_z + l_x]`` has a column for each distance, and a spare one at the end; U has one for each query.
    """
    l_x = U.shape[1]
    t_z, t_x = jnp.arange(l_z)[:, None], jnp.arange(l_x)[None]
    return jnp.matmul(P.T, U, preferred_element_type=accumulation_dtype(U.dtype))[t_z - t_x + l_x - 1, t_x]


def scores_by_distance(
    U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], dtype: jnp.dtype
) -> Float[Array, "l_z l_x"]:
    """``S[t_z, t_x] = B[t_x, t_z − t_x + l_x − 1]`` with ``B = UᵀP``: each row of B begins one column earlier.

    The rows are shifted by a reshape: nothing is gathered, and a block of the scores needs only a slice of P.
    """
    l_x, n = U.shape[1], P.shape[1]
    B = jnp.matmul(U.T, P, preferred_element_type=dtype)
    sheared = B.reshape(-1)[l_x - 1 : l_x * n - 1].reshape(l_x, n - 1)
    return sheared[:, : n - l_x].T


def scores_by_distance_backward(
    U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], dS: Float[Array, "l_z l_x"]
) -> tuple[Float[Array, "d_r l_x"], Float[Array, "d_r n"]]:
    """With ``∂F/∂B[t_x, t_z − t_x + l_x − 1] = ∂F/∂S[t_z, t_x]``, and 0 elsewhere::

    ∂F/∂U = P (∂F/∂B)ᵀ
    ∂F/∂P = U ∂F/∂B
    """
    l_x, n = U.shape[1], P.shape[1]
    sheared = jnp.pad(dS.T, ((0, 0), (0, l_x - 1)))
    dB = jnp.pad(sheared.reshape(-1), (l_x - 1, 1)).reshape(l_x, n)
    dU = jnp.matmul(P, dB.T.astype(P.dtype), preferred_element_type=dS.dtype)
    dP = jnp.matmul(U, dB.astype(U.dtype), preferred_element_type=dS.dtype)
    return dU, dP
