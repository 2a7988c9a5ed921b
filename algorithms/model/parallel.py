"""Attention and a recurrence side by side: line 6 of Algorithm 10 as the sum of two mixers."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import scaled
from algorithms.masks import Mask
from algorithms.model.attention import Attention
from algorithms.model.mixer import Mixer, MixerMetadata
from algorithms.model.recurrence import Recurrence


class Both(NamedTuple):
    """The parameters of both mixers, or their caches."""

    attention: Any
    recurrence: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parallel(Mixer):
    """``c_1 Y + c_2 O``: an attention's Y and a recurrence's O, which read the same columns.

    Attributes:
        attention: the attention.
        recurrence: the recurrence.
        factors: c_1 and c_2.

    Source: Zuo et al. 2025, "Falcon-H1: A Family of Hybrid-Head Language Models", §2.
    """

    attention: Attention = Attention()
    recurrence: Recurrence
    factors: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.factors) != 2:
            self.refuse("factors", "two numbers")

    @property
    def positions(self) -> Any:
        """Those of the attention."""
        return self.attention.positions

    @property
    def divided(self) -> tuple[str, ...]:
        """The custom axes of both that a mesh divides."""
        return *self.attention.divided, *self.recurrence.divided

    @property
    def heads(self) -> tuple[str, ...]:
        """The custom axes of heads of both."""
        return *self.attention.heads, *self.recurrence.heads

    def parts(self, W: Any = None) -> tuple[tuple[Mixer, Any], ...]:
        """Both mixers, each with its part."""
        W = Both(None, None) if W is None else W
        return (self.attention, W.attention), (self.recurrence, W.recurrence)

    def shapes(self) -> Both:
        """The shapes of both mixers' parameters."""
        return Both(self.attention.shapes(), self.recurrence.shapes())

    def sizes(self) -> dict[str, int]:
        """The sizes of both."""
        return self.attention.sizes() | self.recurrence.sizes()

    def whole(
        self, X: Float[Array, "d_e *batch l_x"], W: Any, mask: Mask, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l_x"], Both]:
        """Whole sequences, and what both mixers cache."""
        return self._added(line.whole(X, of, mask, metadata) for line, of in self.parts(W))

    def step(
        self, x: Float[Array, "d_e *batch"], W: Any, cache: Both, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch"], Both]:
        """The next column of each sequence, and both caches with it."""
        return self._added(line.step(x, of, cached, metadata) for line, of, cached in self._with(W, cache))

    def steps(
        self,
        X: Float[Array, "d_e *batch m"],
        W: Any,
        cache: Both,
        metadata: MixerMetadata,
        mask: Mask,
        context: Any = None,
    ) -> tuple[Float[Array, "d_e *batch m"], Both]:
        """Columns in slots, and both caches with them."""
        return self._added(line.steps(X, of, cached, metadata, mask) for line, of, cached in self._with(W, cache))

    def cache_shapes(self, W: Any, *sizes: Any) -> Both:
        """The shapes of both caches."""
        return Both(*(line.cache_shapes(of, *sizes) for line, of in self.parts(W)))

    def _with(self, W: Any, cache: Both) -> list[tuple[Mixer, Any, Any]]:
        return [(line, of, cached) for (line, of), cached in zip(self.parts(W), cache, strict=True)]

    def _added(self, computed: Iterable[tuple[Any, Any]]) -> tuple[Any, Both]:
        (Y, O), caches = zip(*computed, strict=True)
        c_1, c_2 = self.factors
        return scaled(Y, c_1) + scaled(O, c_2), Both(*caches)
