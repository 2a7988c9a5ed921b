"""Attention masks: which context tokens t_z each token t_x may attend to. True means "may be attended to".

The two masks of equation (3), sliding windows to one side or both, prefixes, blocks, padding by length and the borders
of packed documents are *structural*: rules about (t_z, t_x), which fast attention evaluates a block at a time, so that
no ``[l_z, l_x]`` array is formed. A conjunction ``a & b`` of them is structural, too. Any other mask is a dense boolean
array. A mask without batch axes applies to all sequences of a batch. Numbers of another kind or range raise TypeError
and ValueError.

Source: Phuong and Hutter 2022, equation (3) and line 5 of Algorithm 4.
"""

import dataclasses
import functools
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Integer

from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import check_value, has_dtype
from algorithms.machinery.record import Range, as_arguments, as_number


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("length", "prefix", "documents_z", "documents_x", "blocks_z", "blocks_x", "first"),
    meta_fields=("unidirectional", "width"),
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class StructuralMask:
    """A conjunction of optional rules. Use the named ones, such as `UNIDIRECTIONAL`, and join them with ``&``."""

    unidirectional: bool = False  # t_z <= t_x
    width: int | None = None  # |t_x - t_z| < width
    # t_z < length: one integer, or one per sequence, which may be traced. Annotated as Any, since JAX also builds
    # pytrees whose leaves are specifications, not arrays
    length: Annotated[Any, Integer[Array, "*#batch"], int, None] = None
    # t_z <= t_x or t_z < prefix: one integer, or one per sequence, which may be traced
    prefix: Annotated[Any, Integer[Array, "*#batch"], int, None] = None
    # documents_z[t_z] == documents_x[t_x]: the document that each context and each primary token belongs to
    documents_z: Annotated[Any, Integer[Array, "*#batch l_z"], None] = None
    documents_x: Annotated[Any, Integer[Array, "*#batch l_x"], None] = None
    # blocks_z[t_z] <= blocks_x[t_x]: the block that each context and each primary token belongs to
    blocks_z: Annotated[Any, Integer[Array, "*#batch l_z"], None] = None
    blocks_x: Annotated[Any, Integer[Array, "*#batch l_x"], None] = None
    # the position of the first primary token, one or one per sequence, if only some are there; None for 0
    first: Annotated[Any, Integer[Array, "*#batch"], None] = None

    def __repr__(self) -> str:
        """Its rules."""
        rules = {name: rule for name, rule in vars(self).items() if rule is not None and rule is not False}
        return f"StructuralMask({as_arguments(rules)})"

    def permits(self, t_z: Integer[Array, "*#shape"], t_x: Integer[Array, "*#shape"]) -> Bool[Array, "*shape"]:
        """Whether token t_x of one sequence may attend to t_z, for indices that broadcast against each other."""
        permitted = jnp.ones(jnp.broadcast_shapes(t_z.shape, t_x.shape), bool)
        number, t_x = t_x, t_x if self.first is None else t_x + self.first
        if self.ahead is not None:
            permitted &= t_z <= t_x + self.ahead
        if self.width is not None:
            permitted &= t_x - self.width < t_z
        if self.length is not None:
            permitted &= t_z < self.length
        if self.prefix is not None:
            permitted &= (t_z <= t_x) | (t_z < self.prefix)
        if self.documents_z is not None:
            permitted &= self.documents_z[t_z] == self.documents_x[number]
        if self.blocks_z is not None:
            permitted &= self.blocks_z[t_z] <= self.blocks_x[number]
        return permitted

    @property
    def ahead(self) -> int | None:
        """How many tokens after its own position a token may attend to; None for all."""
        return 0 if self.unidirectional else None if self.width is None else self.width - 1

    def dense(self, l_z: int, l_x: int) -> Bool[Array, "*batch {l_z} {l_x}"]:
        """The mask as an array, with the batch axes of the arrays that define it.

        Example:
            >>> UNIDIRECTIONAL.dense(2, 3).astype(int).tolist()
            [[1, 1, 1], [0, 1, 1]]
        """

        def of_sequences(mask):
            return mask.permits(jnp.arange(l_z)[:, None], jnp.arange(l_x)[None, :])

        for _ in range(max(jax.tree.leaves(batch_axes(self)), default=0)):
            of_sequences = jax.vmap(of_sequences, in_axes=(sequence_axes(self),))
        return of_sequences(self)

    def __and__(self, other: "Mask") -> "Mask":
        if not isinstance(other, StructuralMask):
            return _dense_and(self, other)
        if self.blocks_z is not None and other.blocks_z is not None:
            raise ValueError(
                "cannot join two blocks() masks: give one of them as an array, blocks(numbers).dense(l, l)"
            )
        documents_z, documents_x = _documents_of_both(self, other)
        of_blocks = self if self.blocks_z is not None else other
        unidirectional = self.unidirectional or other.unidirectional
        return StructuralMask(
            unidirectional=unidirectional,
            width=_narrower(self.width, other.width, min),
            length=_narrower(self.length, other.length, jnp.minimum),
            prefix=None if unidirectional else _narrower(self.prefix, other.prefix, jnp.minimum),
            documents_z=documents_z,
            documents_x=documents_x,
            blocks_z=of_blocks.blocks_z,
            blocks_x=of_blocks.blocks_x,
            first=other.first if self.first is None else self.first,
        )

    __rand__ = __and__
    __array_ufunc__ = None  # so that NumPy leaves ``array & mask`` to __rand__
    __expected__ = "a structural mask such as UNIDIRECTIONAL"


Mask = StructuralMask | Bool[AnyArray, "*#batch l_z l_x"]
SelfMask = StructuralMask | Bool[AnyArray, "*#batch l l"]
ContextMask = StructuralMask | Bool[AnyArray, "*#batch l_z l_z"]
PrimaryMask = StructuralMask | Bool[AnyArray, "*#batch l_x l_x"]


_NOT_NEGATIVE = Range("a length >= 0", lambda length: length >= 0)

_LONGEST = 2**30
"""A window this wide excludes nothing, since no sequence is longer; a wider one would overflow an int32."""

_RANKS = {"length": 0, "prefix": 0, "documents_z": 1, "documents_x": 1, "blocks_z": 1, "blocks_x": 1, "first": 0}
"""The rank of each array of a structural mask for one sequence."""


def batch_axes(mask: Mask) -> Any:
    """The mask with the number of its batch axes in place of each array."""
    if not isinstance(mask, StructuralMask):
        return jnp.ndim(mask) - 2
    counts = {name: jnp.ndim(a) - rank for name, rank in _RANKS.items() if (a := getattr(mask, name)) is not None}
    return dataclasses.replace(mask, **counts)


def divisible_axes(mask: Mask) -> Any:
    """The mask with a pair of axes in place of each array: the axis of the sequences and that of the queries.

    None stands for an axis that the array does not have. There is at most one batch axis.
    """
    if not isinstance(mask, StructuralMask):
        return 0 if jnp.ndim(mask) > 2 else None, jnp.ndim(mask) - 1
    counts = {name: n for name in _RANKS if (n := getattr(batch_axes(mask), name)) is not None}
    axes = {name: (0 if n else None, n if name.endswith("_x") else None) for name, n in counts.items()}
    return dataclasses.replace(mask, **axes)


def depends_on_position(mask: Mask) -> bool:
    """Whether a mask compares the positions of the two tokens."""
    return isinstance(mask, StructuralMask) and (mask.ahead is not None or mask.prefix is not None)


def sequence_axes(mask: Mask) -> Any:
    """The ``in_axes`` of `jax.vmap` over one batch axis of a mask: 0 for arrays that have it, None for others."""
    return jax.tree.map(lambda n: 0 if n else None, batch_axes(mask))


def _narrower(a, b, narrower):
    if a is None or b is None:
        return b if a is None else a
    return narrower(a, b)


def _documents_of_both(a: StructuralMask, b: StructuralMask) -> tuple[Any, Any]:
    """Numbers of documents, of the context and of the primary tokens, that are equal where those of both masks are."""
    if a.documents_z is None or b.documents_z is None:
        of = b if a.documents_z is None else a
        return of.documents_z, of.documents_x
    if a.documents_x is a.documents_z and b.documents_x is b.documents_z:
        both = _numbers_of_pairs(a.documents_z, b.documents_z)
        return both, both
    l_z = a.documents_z.shape[-1]
    numbers = _numbers_of_pairs(*(_side_by_side(mask.documents_z, mask.documents_x) for mask in (a, b)))
    return numbers[..., :l_z], numbers[..., l_z:]


def _side_by_side(a: Any, b: Any) -> Array:
    batch = jnp.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    return jnp.concatenate([jnp.broadcast_to(n, (*batch, n.shape[-1])) for n in (a, b)], axis=-1)


def _numbers_of_pairs(a: Any, b: Any) -> Array:
    a, b = jnp.broadcast_arrays(a, b)
    order = jnp.lexsort((b, a))
    a, b = (jnp.take_along_axis(n, order, axis=-1) for n in (a, b))
    begins = (a[..., 1:] != a[..., :-1]) | (b[..., 1:] != b[..., :-1])
    rank = jnp.cumsum(begins, axis=-1, dtype=jnp.int32)
    rank = jnp.pad(rank, [(0, 0)] * (a.ndim - 1) + [(1, 0)])[..., : a.shape[-1]]
    return jnp.take_along_axis(rank, jnp.argsort(order, axis=-1), axis=-1)


def _dense_and(mask: StructuralMask, dense: Any) -> Array:
    dense = jnp.asarray(dense)
    if dense.dtype != bool or dense.ndim < 2:
        raise TypeError(f"mask: expected booleans [*batch, l_z, l_x], got {dense.dtype}{list(dense.shape)}")
    rules = mask.dense(*dense.shape[-2:])
    n = max(rules.ndim, dense.ndim)
    return jnp.expand_dims(rules, range(n - rules.ndim)) & jnp.expand_dims(dense, range(n - dense.ndim))


BIDIRECTIONAL = StructuralMask()
"""Every token may attend to every context token: Mask ≡ 1."""

UNIDIRECTIONAL = StructuralMask(unidirectional=True)
"""A token may attend to itself and to earlier tokens: Mask[t_z, t_x] = ⟦t_z <= t_x⟧."""


def banded(width: int) -> StructuralMask:
    """A sliding window: a token may attend to itself and the ``width - 1`` before it, t_x - width < t_z <= t_x.

    It is ``UNIDIRECTIONAL & near(width)``.

    Example:
        >>> banded(2).dense(3, 3).astype(int).tolist()
        [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    """
    return StructuralMask(unidirectional=True, width=_width("banded", width))


def near(width: int) -> StructuralMask:
    """A sliding window to both sides: a token may attend to itself and the ``width - 1`` on each, |t_x - t_z| < width.

    Example:
        >>> near(2).dense(3, 3).astype(int).tolist()
        [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    return StructuralMask(width=_width("near", width))


def _width(name: str, width: Any) -> int | None:
    width = as_number(width)
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"{name}: expected a width of at least 1 token, got {width!r}")
    return width if width < _LONGEST else None


def padding(length: Integer[AnyArray, "*batch"] | int) -> StructuralMask:
    """Only the first ``length`` context tokens may be attended to, t_z < length; one length, or one per sequence.

    Example:
        >>> (UNIDIRECTIONAL & padding(1)).dense(2, 2).astype(int).tolist()
        [[1, 1], [0, 0]]
    """
    return StructuralMask(length=_length("padding", length))


def prefix(length: Integer[AnyArray, "*batch"] | int) -> StructuralMask:
    """A prefix language model's mask: every token may attend to the first ``length``, t_z <= t_x or t_z < length.

    One length, or one per sequence; with 0 it is `UNIDIRECTIONAL`.

    Example:
        >>> prefix(2).dense(3, 3).astype(int).tolist()
        [[1, 1, 1], [1, 1, 1], [0, 0, 1]]
    """
    return StructuralMask(prefix=_length("prefix", length))


def _length(name: str, length: Any) -> Any:
    is_array = hasattr(length, "dtype")
    is_integer = has_dtype(length, jnp.integer) if is_array else jnp.issubdtype(jnp.result_type(length), jnp.integer)
    if isinstance(length, bool) or not is_integer:
        raise TypeError(f"{name}: expected an integer length, or one for each sequence, got {length!r}")
    check_value(name, length, _NOT_NEGATIVE)
    return length


def documents(numbers: Integer[AnyArray, "*batch l"]) -> StructuralMask:
    """Packed documents: a token may attend only to tokens of its own document, a run of equal ``numbers``.

    Joined with another of these, it lets tokens attend that are in the same document of both.

    Example:
        >>> documents(jnp.array([1, 1, 2])).dense(3, 3).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    if not has_dtype(numbers, jnp.integer):
        raise TypeError(f"documents: expected integers [*batch, l], got {numbers!r}; make it an array with jnp.asarray")
    numbers = runs(numbers)
    return StructuralMask(documents_z=numbers, documents_x=numbers)


def runs(numbers: Integer[AnyArray, "*batch l"]) -> Integer[Array, "*batch l"]:
    """The number, from 0, of the run of equal numbers that each token is in."""
    return jnp.cumsum(_begins(numbers, False), axis=-1, dtype=jnp.int32)


def positions_in_runs(numbers: Integer[AnyArray, "*batch l"]) -> Integer[Array, "*batch l"]:
    """The position of each token in its run of equal numbers: 0, 1, …"""
    t = jnp.broadcast_to(jnp.arange(numbers.shape[-1]), numbers.shape)
    return t - jax.lax.cummax(jnp.where(_begins(numbers, True), t, 0), axis=numbers.ndim - 1)


def in_documents(mask: Any, segments: Any, positions: Any = None) -> tuple[Any, Any]:
    """A mask within documents, and positions, which restart in each unless they are given; as they are without any."""
    if segments is None:
        return mask, positions
    return mask & documents(segments), positions_in_runs(segments) if positions is None else positions


def _begins(numbers: Any, first: bool) -> Array:
    is_other = numbers[..., 1:] != numbers[..., :-1]
    return jnp.concatenate([jnp.full_like(is_other, first, shape=(*numbers.shape[:-1], 1)), is_other], axis=-1)


def blocks(numbers: Integer[AnyArray, "*batch l"]) -> StructuralMask:
    """Blocks of tokens: a token may attend to its own block, on both sides, and to blocks of smaller numbers.

    ``numbers`` has each token's block, as for block diffusion. A block for each token is `UNIDIRECTIONAL`.

    Example:
        >>> blocks(jnp.array([0, 0, 1, 1])).dense(4, 4).astype(int).tolist()
        [[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    """
    return StructuralMask(blocks_z=numbers, blocks_x=numbers)
