"""Line 6 of Algorithm 10 and its likes: what mixes the columns of a sequence, such as an attention."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

from jax import Array
from jaxtyping import Float

from algorithms.masks import Mask
from algorithms.model.line import Line
from algorithms.model.positions import Table
from algorithms.notation import Implementation, OptionalKey


class Given(NamedTuple):
    """What a mixer is given besides columns, parameters, a mask and a context."""

    t: Any  # the positions of the columns
    implementation: Implementation
    table: Table = Table()  # what the mixers of all layers share
    dropout: float = 0.0
    key: OptionalKey = None
    until: Any = None  # of how many tokens of each sequence to keep something; None: of all


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixer(Line, abstract=True):
    """The line of a layer in which a column reads others, in two forms that compute the same.

    ``whole`` computes whole sequences, ``step`` one column of each after those that it has kept something of. What that
    is, is the mixer's own: a pytree of arrays whose last axis has the sequences, as ``begin`` makes it. A mixer of your
    own overrides ``shapes``, ``whole`` and, to generate from what is kept, ``step`` and ``begin``.
    """

    positions: ClassVar[Any] = None
    """How it depends on the positions of tokens, if not by their order alone."""

    window: ClassVar[int | None] = None
    """The number of tokens that a token reads, itself included; None: all."""

    reads_context: ClassVar[bool] = False
    """Whether it can read the columns of a context in place of its own, as line 16 of Algorithm 8 does."""

    def whole(
        self, X: Float[Array, "d_e *batch l_x"], W: Any, mask: Mask, given: Given, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l_x"], Any]:
        """The columns of whole sequences, and what is kept of the first ``given.until`` tokens of each.

        They read a context ``[d_e, *batch, l_z]`` in place of themselves if there is one, of a line that can.
        """
        raise NotImplementedError

    def step(
        self, x: Float[Array, "d_e *batch"], W: Any, kept: Any, given: Given, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch"], Any]:
        """The column of each sequence that follows those of which ``kept`` is kept, and what is kept then."""
        raise NotImplementedError

    def begin(self, W: Any, B: int) -> Any:
        """What is kept before the first column of B sequences."""
        raise NotImplementedError
