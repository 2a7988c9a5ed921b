"""Line 6 of Algorithm 10 and its likes: what mixes the columns of a sequence, such as an attention."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer, Shaped

from algorithms.masks import Mask
from algorithms.model.line import Line
from algorithms.model.positions import Table


class Given(NamedTuple):
    """What a mixer is given besides columns, parameters, a mask and a context."""

    t: Any  # the positions of the columns
    table: Table = Table()  # what the mixers of all layers share
    until: Any = None  # of how many tokens of each sequence to keep something; None: of all
    slots: Any = None  # of the columns, where what is kept has slots


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

        They read a context ``[d_e, *batch, l_z]`` in place of themselves if there is one, of a line that can. With
        ``given.until``, nothing reads the columns of later tokens.
        """
        self._lacks("whole", "to compute sequences")

    def step(
        self, x: Float[Array, "d_e *batch"], W: Any, kept: Any, given: Given, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch"], Any]:
        """The column of each sequence that follows those of which ``kept`` is kept, and what is kept then."""
        self._lacks("step", "to generate from what is kept")

    def begin(self, W: Any, B: int) -> Any:
        """What is kept before the first column of B sequences."""
        self._lacks("begin", "to generate from what is kept")

    def context(self, Z: Float[Array, "d_e *batch l_z"], W: Any) -> tuple[Array, Array]:
        """What is kept of a context, of a line that can read one."""
        self._lacks("context", "to generate with a context that is kept")

    def _lacks(self, method: str, purpose: str) -> NoReturn:
        kind = type(self).__name__
        raise NotImplementedError(f"{kind}.{method}: expected a method of its own, got none; define it {purpose}")

    def slots(self, W: Any, d_e: int, dtype: Any, batch: tuple[int, ...], C: int) -> Any:
        """The shapes ``[…, *batch, C]`` of what `steps` keeps of C tokens, by those of the parameters."""
        kept = jax.eval_shape(lambda W: self.begin(W, math.prod(batch)), W)
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((*a.shape[:-1], *batch, C), a.dtype), kept)

    def steps(
        self, X: Float[Array, "d_e *batch m"], W: Any, kept: Any, given: Given, mask: Mask, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch m"], Any]:
        """Columns of each sequence in the slots ``given.slots``, one after another, and what is kept then.

        A slot has what is kept after its column, so a sequence can continue behind any of them.
        """
        (d_e, *batch, m), slots = X.shape, given.slots
        B = math.prod(batch)

        @functools.partial(jax.vmap, in_axes=(-2, -1, 0), out_axes=-1)
        def before(of_slots, first, slot):
            return jnp.where(slot > 0, of_slots[..., jnp.maximum(slot - 1, 0)].astype(first.dtype), first)

        def turn(of_column, x_t):
            y, of_column = self.step(x_t[0], W, of_column, given._replace(t=x_t[1]))
            return of_column, (y, of_column)

        flat = jax.tree.map(lambda a: a.reshape(*a.shape[: a.ndim - len(batch) - 1], B, a.shape[-1]), kept)
        columns = jnp.moveaxis(X.reshape(d_e, B, m), -1, 0), given.t.reshape(B, m).T
        first = slots.reshape(B, m)[:, 0]
        begun = jax.tree.map(lambda a, begun: before(a, begun, first), flat, self.begin(W, B))
        _, (Y, after) = jax.lax.scan(turn, begun, columns)
        after = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1).reshape(*a.shape[1:-1], *batch, m), after)
        return jnp.moveaxis(Y, 0, -1).reshape(X.shape), jax.tree.map(lambda a, new: stored(a, new, slots), kept, after)


def stored(
    kept: Shaped[Array, "*rows C"], columns: Shaped[Array, "*rows m"], slots: Integer[Array, "*batch m"]
) -> Shaped[Array, "*rows C"]:
    """What is kept, ``[…, *batch, C]``, with columns ``[…, *batch, m]`` in these slots; those beyond C are dropped."""
    first = kept.ndim - slots.ndim

    def store(kept, columns, slots):
        return kept.at[..., slots].set(columns.astype(kept.dtype), mode="drop")

    for _ in range(slots.ndim - 1):
        store = jax.vmap(store, (first, first, 0), first)
    return store(kept, columns, slots)
