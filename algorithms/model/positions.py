"""Positions of queries and keys: rotations between lines 2 and 4 of Algorithm 4."""

import dataclasses
import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import accumulation_dtype
from algorithms.machinery.record import Count, Positive, Range, Record
from algorithms.notation import Base
from algorithms.ops.rotation import rotate


class DistanceTable(NamedTuple):
    """The scores by distance that all layers share, as in T5."""

    numbers: Any = None  # θ's distances, [H, N_buckets], or None
    both_ways: bool = False  # whether tokens also attend to later ones


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Record):
    """Divides all frequencies by ``factor``, which moves positions closer together (Chen et al. 2023).

    Attributes:
        factor: by how much longer sequences may be than those first trained on.
    """

    factor: Positive

    def __call__(self, frequencies: np.ndarray, base: float) -> tuple[np.ndarray, float]:
        """The scaled frequencies, and a factor for sines and cosines."""
        return frequencies / self.factor, 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3(Record):
    """Divides low frequencies by ``factor``, keeps high ones, and interpolates between them (Llama 3.1).

    Attributes:
        factor: by how much longer sequences may be than those first trained on.
        low: rotations within ``l_original`` tokens up to which a frequency is low.
        high: rotations within ``l_original`` tokens from which a frequency is high.
        l_original: length in tokens of the sequences first trained on.
    """

    factor: Positive = 8.0
    low: Positive = 1.0
    high: Positive = 4.0
    l_original: Count = 8192

    def __call__(self, frequencies: np.ndarray, base: float) -> tuple[np.ndarray, float]:
        """The scaled frequencies, and a factor for sines and cosines."""
        rotations = self.l_original * frequencies / (2 * math.pi)
        share = np.clip((rotations - self.low) / max(self.high - self.low, 1e-12), 0, 1)
        return frequencies * (share + (1 - share) / self.factor), 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yarn(Record):
    """Like ``Llama3``, but interpolates by row instead of frequency, and scales up the scores (Peng et al. 2023).

    Attributes:
        factor: by how much longer sequences may be than those first trained on.
        l_original: length in tokens of the sequences first trained on.
        slow: rotations within ``l_original`` tokens up to which a frequency is divided by ``factor``.
        fast: rotations within ``l_original`` tokens from which a frequency is kept.
        attention_factor: factor of sines and cosines; None: 1 + ln(factor)/10.
        truncate: whether to round the rows at which the interpolation starts and ends.
        scores: s: `Latent` multiplies its scores by (1 + s ln(factor)/10)², DeepSeek's ``mscale_all_dim``.
    """

    factor: Positive
    l_original: Count
    slow: Positive = 1.0
    fast: Positive = 32.0
    attention_factor: Positive | None = None
    truncate: bool = True
    scores: float = 0.0

    @property
    def of_scores(self) -> float:
        """The factor of the scores of latent attention."""
        return self.magnitude(self.scores) ** 2

    def magnitude(self, share: float = 1.0) -> float:
        """``1 + share · ln(factor)/10``; 1 if sequences are no longer than those first trained on."""
        return 0.1 * share * math.log(max(self.factor, 1)) + 1

    def __call__(self, frequencies: np.ndarray, base: float) -> tuple[np.ndarray, float]:
        """The scaled frequencies, and a factor for sines and cosines."""
        n = len(frequencies)

        def row(rotations):
            return n * math.log(self.l_original / (rotations * 2 * math.pi)) / math.log(base)

        low, high = row(self.fast), row(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * n - 1)
        divided = np.clip((np.arange(n) - low) / max(high - low, 0.001), 0, 1)
        factor = self.magnitude() if self.attention_factor is None else self.attention_factor
        return frequencies * ((1 - divided) + divided / self.factor), factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions(Record):
    """How queries, keys or scores depend on the positions of tokens; the base class of custom positions, too."""

    in_context: ClassVar[bool] = False
    """Whether cross-attention, which ignores them, is supported."""

    by_distance: ClassVar[bool] = False
    """Whether something is added to the scores that depends on the distance of two tokens, in columns."""

    def shapes(self) -> dict[str, Any]:
        """The shapes of the fields that they add to 𝓦: ``of_positions``, or those of published models."""
        return {}

    def sizes(self) -> dict[str, int]:
        """The sizes of custom axes, by name."""
        return {}

    def of_layers(self) -> Any:
        """The shape of θ's distances, which all layers share; None if they use none."""
        return None

    def check(self, d_attn: int) -> None:
        """Raise ValueError if queries with d_attn rows cannot have these positions."""

    def rotate(self, Q: Float[Array, "H d_attn *columns"], t: Any) -> Float[Array, "H d_attn *columns"]:
        """The queries or keys of tokens at the positions t."""
        return Q

    def of_queries(self, Q: Float[Array, "H d_attn *columns"], t: Any) -> Float[Array, "H d_attn *columns"]:
        """The queries of tokens at the positions t, which are rotated as keys are."""
        return self.rotate(Q, t)

    def scores(self, Q: Any, W: Any, table: DistanceTable, scale: float) -> tuple[Any, Any, Any]:
        """The queries for the product with keys, and U and P of ``algorithms.ops.attention.tiles``, or None.

        P is a function of distances. ``scale`` turns the factor 1/√d_attn of the scores into the model's.
        """
        return Q, None, None

    def __call__(self, Q: Any, t: Any) -> Any:
        """The method ``rotate``."""
        return self.rotate(Q, t)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Temperature(Positions):
    """Queries grow with their position t, from 0: ``(1 + c ln(1 + ⌊(t + i)/n⌋)) Q[:, t]``; keys stay as they are.

    The softmax over a long context is then as sharp as over a short one.

    Attributes:
        c: how fast they grow.
        n: after how many tokens they grow.
        first: i, the number of the first token: 1, or 0 as in Ministral 3.

    Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention", as in Llama 4.
    """

    c: float = 0.1
    n: Count = 8192
    first: Literal[0, 1] = 1

    def of_queries(self, Q: Float[Array, "H d_attn *columns"], t: Any) -> Float[Array, "H d_attn *columns"]:
        """The queries, scaled by position."""
        t = jnp.asarray(t).reshape(*(1,) * (Q.ndim - jnp.ndim(t)), *jnp.shape(t))
        dtype = accumulation_dtype(Q.dtype)
        return (Q * (1 + self.c * jnp.log1p(((t + self.first) // self.n).astype(dtype)))).astype(Q.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary(Positions):
    """Rotary positions: two rows of column t form a complex number, which is multiplied by exp(𝑖 t/base^{2i/d}).

    The product of a query and a key then depends on their positions only through the distance.

    Attributes:
        base: of the wavelengths.
        share: share of the rows, from the first, that are rotated.
        of_all: whether pairs and wavelengths are those of all rows, as in Gemma 4; ``share`` is then that of the pairs.
        pairs: which rows form a pair: i and i + d/2 (``"halves"``), 2i and 2i + 1 (``"neighbors"``), or
            i + d/2 and i (``"halves_swapped"``), which turns halves the other way.
        scaling: of the frequencies, for sequences longer than those first trained on.
        temperature: how rotated queries grow with their position; None: not at all.

    Source: Su et al. 2021, equation (34).
    """

    base: Base = 10_000.0
    share: Annotated[float, Range("a share in (0, 1]", lambda share: 0 < share <= 1)] = 1.0
    of_all: bool = False
    pairs: Literal["halves", "neighbors", "halves_swapped"] = "halves"
    scaling: Linear | Llama3 | Yarn | None = None
    temperature: Temperature | None = None

    def of_queries(self, Q: Float[Array, "H d_attn *columns"], t: Any) -> Float[Array, "H d_attn *columns"]:
        """The queries, rotated, and multiplied by their temperature."""
        Q = self.rotate(Q, t)
        return Q if self.temperature is None else self.temperature.of_queries(Q, t)

    def rows(self, d_attn: int) -> int:
        """The number of rows of a query that are rotated. Raises ValueError if it is odd."""
        d = d_attn if self.of_all else int(d_attn * self.share)
        if d % 2:
            raise ValueError(f"Rotary: expected an even number of rows to rotate, got {d} of d_attn = {d_attn}")
        return d

    def check(self, d_attn: int) -> None:
        """Check that an even number of rows is rotated."""
        self.rows(d_attn)

    def rotate(self, Q: Float[Array, "H d_attn *columns"], t: Any) -> Float[Array, "H d_attn *columns"]:
        """The queries or keys, rotated for tokens at the positions t."""
        d = self.rows(Q.shape[1])
        frequencies, factor = self.base ** (-np.arange(0, d, 2, dtype=np.float64) / d), 1.0
        if self.scaling is not None:
            frequencies, factor = self.scaling(frequencies, self.base)
        if self.of_all:
            frequencies[int(self.share * d // 2) :] = 0
        dtype = accumulation_dtype(Q.dtype)
        # Known positions are computed here, not in every fusion that rotates; long ones would be large constants.
        of = np if isinstance(t, np.ndarray) and t.size <= 8192 else jnp
        t = of.asarray(t)
        t = t.reshape(*(1,) * (Q.ndim - 1 - t.ndim), *t.shape).astype(dtype)
        angle = of.asarray(frequencies, dtype).reshape(-1, *(1,) * (t.ndim - 1)) * t
        cos, sin = (jnp.asarray(f(angle) if factor == 1 else f(angle) * factor) for f in (of.cos, of.sin))
        rotated = rotate(self.pairs, Q[:, :d], cos, sin)
        return rotated if d == Q.shape[1] else jnp.concatenate([rotated, Q[:, d:]], axis=1)
