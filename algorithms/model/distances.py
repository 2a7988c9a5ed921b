"""Positions in the scores: what the distance of two tokens adds to S in line 4 of Algorithm 4.

Each kind computes the U and P of ``algorithms.ops.attention.tiles``. A distance is t_z − t_x, in columns; in packed
documents, whose tokens attend only to their own document, that is the distance within the document.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from algorithms.alg01_embedding import sinusoid
from algorithms.machinery.arrays import accumulation_dtype, scaled
from algorithms.machinery.contract import array
from algorithms.machinery.record import Range
from algorithms.model.positions import DistanceTable, Positions
from algorithms.notation import Base


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByDistance(Positions):
    """The base class of the kinds. Cross-attention has no distances, since its sequences have separate positions."""

    keys: ClassVar[Callable[..., Array]]
    """P, ``[H, d_r, n]``, for n distances t_z − t_x; defined by each kind."""

    in_context: ClassVar[bool] = True
    by_distance: ClassVar[bool] = True

    def scores(self, Q: Any, W: Any, table: DistanceTable, scale: float) -> tuple[Any, Any, Any]:
        """The queries to multiply by the keys, and U and P."""
        return self.contents(Q, W), self.queries(Q, W, scale), functools.partial(self.keys, W=W, table=table, like=Q)

    def contents(self, Q: Float[Array, "H d_attn *columns"], W: Any) -> Float[Array, "H d_attn *columns"]:
        """The queries to multiply by the keys."""
        return Q

    def queries(self, Q: Float[Array, "H d_attn *columns"], W: Any, scale: float) -> Float[Array, "H d_r *columns"]:
        """U. Multiplying by ``scale`` turns the scores' factor 1/√d_attn into the model's own."""
        return jnp.full_like(Q, Q.shape[1] ** 0.5, accumulation_dtype(Q.dtype), shape=(len(Q), 1, *Q.shape[2:]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distances(ByDistance):
    """Adds to the scaled scores a learned number for each head and bucket of distances, the same in all layers.

    In each direction, half of the buckets hold one distance each; the others grow geometrically up to ``farthest``. If
    tokens attend both ways, half of the buckets are for t_z > t_x; otherwise all are for t_z <= t_x.

    Attributes:
        buckets: number of buckets.
        farthest: the distance from which on all share the last bucket.

    Source: Raffel et al. 2020, section 2.1.
    """

    def sizes(self) -> dict[str, int]:
        """The number of buckets."""
        return {"N_buckets": self.buckets}

    def of_layers(self) -> Any:
        """A number for each head and bucket."""
        return array("H N_buckets")

    buckets: Annotated[int, Range("an even number >= 4", lambda n: n >= 4 and n % 2 == 0)] = 32
    farthest: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.farthest <= self.buckets // 2:
            self.refuse("farthest", f"a distance > {self.buckets // 2}, half of the buckets")

    def keys(self, distances: Any, W: Any, table: DistanceTable, like: Any) -> Array:
        """The learned number of each distance's bucket."""
        numbers = table.numbers
        if numbers.shape[-1] != self.buckets:
            raise ValueError(
                f"theta.distances: expected [H, {self.buckets}], since Distances has buckets = {self.buckets}, "
                f"got {list(numbers.shape)}; use the variant that these parameters were made for"
            )
        one_hot = self.bucket(distances, table.both_ways)[None] == jnp.arange(self.buckets)[:, None]
        dtype = accumulation_dtype(numbers.dtype)
        return jnp.matmul(numbers.astype(dtype), one_hot.astype(dtype))[:, None]

    def bucket(self, distances: Any, both_ways: bool) -> Integer[Array, "n"]:
        """The bucket of each distance, in integer arithmetic, so that nothing is rounded."""
        n = self.buckets // 2 if both_ways else self.buckets
        exact = n // 2
        # the first distances of the buckets after the exact ones: exact (farthest/exact)^{k/(n − exact)}
        firsts = [self._first(k, exact, n - exact) for k in range(1, n - exact)]
        away = jnp.abs(distances) if both_ways else jnp.maximum(-distances, 0)
        farther = (away[:, None] >= jnp.asarray(firsts)[None]).sum(axis=1)
        bucket = jnp.where(away < exact, away, exact + farther)
        return jnp.where(distances > 0, bucket + n, bucket) if both_ways else bucket

    def _first(self, k: int, exact: int, steps: int) -> int:
        """The smallest integer >= ``exact (farthest/exact)^{k/steps}``: near its value as a float, decided exactly."""
        first = math.floor(exact * (self.farthest / exact) ** (k / steps))
        bound = self.farthest**k * exact ** (steps - k)
        return next(away for away in range(first, first + 3) if away**steps >= bound)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ALiBi(ByDistance):
    """Adds ``−m_h |t_z − t_x|`` to the scaled scores of head h.

    For H = 2^i heads, ``m_h = 2^{−8h/H}`` with h = 1 … H. For other H, with 2^i the largest power of 2 below it, the
    first 2^i heads have the slopes of 2^i heads, and the rest the first, third, fifth, … of 2^{i+1} heads.

    Source: Press et al. 2022, section 3.
    """

    def keys(self, distances: Any, W: Any, table: DistanceTable, like: Any) -> Array:
        """−m_h |t_z − t_x|."""
        H, dtype = len(like), accumulation_dtype(like.dtype)
        power = 2 ** (H.bit_length() - 1)
        slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
        slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (H - power), 2)]
        return -jnp.asarray(slopes, dtype)[:, None, None] * jnp.abs(distances).astype(dtype)[None, None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerXL(ByDistance):
    """``S[t_z, t_x] = K[:, t_z]ᵀ(Q[:, t_x] + u) + (W_r r_{t_x − t_z})ᵀ(Q[:, t_x] + v)``, scaled as usual.

    r is the sinusoidal embedding of the distance, all sines before all cosines.

    Attributes:
        base: of the wavelengths.

    Source: Dai et al. 2019, section 3.3, which the paper names for Gopher.
    """

    base: Base = 10_000.0
    in_context: ClassVar[bool] = False

    def shapes(self) -> dict[str, Any]:
        """The shapes of W_r, u and v."""
        return {"W_r": array("H d_attn d_e"), "u": array("H d_attn"), "v": array("H d_attn")}

    def contents(self, Q: Array, W: Any) -> Array:
        """Q + u 1ᵀ."""
        return Q + W.u.reshape(*W.u.shape, *(1,) * (Q.ndim - 2))

    def queries(self, Q: Array, W: Any, scale: float) -> Array:
        """Q + v 1ᵀ."""
        return scaled(Q + W.v.reshape(*W.v.shape, *(1,) * (Q.ndim - 2)), scale)

    def keys(self, distances: Any, W: Any, table: DistanceTable, like: Any) -> Array:
        """``W_r r_{−δ}`` for each distance δ."""
        d_r, dtype = W.W_r.shape[-1], W.W_r.dtype
        r = sinusoid(-distances, d_r, base=self.base, form="sinusoidal_halves", dtype=accumulation_dtype(dtype))
        return jnp.matmul(W.W_r, jnp.asarray(r, dtype))
