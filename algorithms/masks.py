"""Masks of the attention: which context token t_z each token t_x may attend. True is "may be attended".

Equation (3)'s two masks, the band of a sliding window, padding by length and the borders of packed documents are
*structural*: they are rules about (t_z, t_x) which fast attention evaluates a block at a time and which never become
an ``[l_z, l_x]`` array there. Any conjunction ``a & b`` of them is again one. A dense boolean array serves where no
rule does.

Source: Phuong and Hutter 2022, equation (3) and line 5 of Algorithm 4.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

__all__ = ["BIDIRECTIONAL", "UNIDIRECTIONAL", "Mask", "StructuralMask", "banded", "documents", "padding"]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("length", "documents_z", "documents_x"),
    meta_fields=("unidirectional", "width"),
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class StructuralMask:
    """A conjunction of rules, each of which may be absent. Make one by name, and join them with ``&``.

    Attributes:
        unidirectional: t_z <= t_x.
        width: t_x - width < t_z.
        length: t_z < length; an integer scalar, which may be traced.
        documents_z: with documents_x, the number of the document that each context token belongs to, ``[l_z]``, ...
        documents_x: ... and each primary token, ``[l_x]``; a token attends its own document only.
    """

    unidirectional: bool = False
    width: int | None = None
    length: Any = None  # Any: JAX also builds pytrees of specifications, whose leaves are no arrays
    documents_z: Any = None
    documents_x: Any = None

    def permits(self, t_z: Int[Array, "*#shape"], t_x: Int[Array, "*#shape"]) -> Bool[Array, "*shape"]:
        """Whether token t_x may attend context token t_z, for index arrays that broadcast against each other."""
        permitted = jnp.ones(jnp.broadcast_shapes(t_z.shape, t_x.shape), bool)
        if self.unidirectional:
            permitted &= t_z <= t_x
        if self.width is not None:
            permitted &= t_x - self.width < t_z
        if self.length is not None:
            permitted &= t_z < self.length
        if self.documents_z is not None and self.documents_x is not None:
            permitted &= self.documents_z[t_z] == self.documents_x[t_x]
        return permitted

    def dense(self, l_z: int, l_x: int) -> Bool[Array, "{l_z} {l_x}"]:
        """The mask as an array.

        Example:
            >>> UNIDIRECTIONAL.dense(2, 3).astype(int).tolist()
            [[1, 1, 1], [0, 1, 1]]
        """
        return self.permits(jnp.arange(l_z)[:, None], jnp.arange(l_x)[None, :])

    def __and__(self, other: "Mask") -> "Mask":
        if not isinstance(other, StructuralMask):
            return _dense_and(self, other)
        if self.documents_z is not None and other.documents_z is not None:
            raise ValueError("cannot join two documents() masks: number the documents of both in one array instead")
        mine = self if self.documents_z is not None else other
        return StructuralMask(
            unidirectional=self.unidirectional or other.unidirectional,
            width=_narrower(self.width, other.width, min),
            length=_narrower(self.length, other.length, jnp.minimum),
            documents_z=mine.documents_z,
            documents_x=mine.documents_x,
        )

    __rand__ = __and__
    __array_ufunc__ = None  # so that NumPy leaves ``array & mask`` to __rand__


Mask = StructuralMask | Bool[Array, "... l_z l_x"]


def _narrower(a, b, narrower):
    if a is None or b is None:
        return b if a is None else a
    return narrower(a, b)


def _dense_and(mask: StructuralMask, dense: Any) -> Array:
    dense = jnp.asarray(dense)
    if dense.dtype != bool or dense.ndim != 2:
        raise TypeError(f"mask: expected a boolean [l_z, l_x] array, got {dense.dtype}{list(dense.shape)}")
    return mask.dense(*dense.shape) & dense


BIDIRECTIONAL = StructuralMask()
"""Every token may attend every context token: Mask ≡ 1."""

UNIDIRECTIONAL = StructuralMask(unidirectional=True)
"""A token may attend itself and what stands before it: Mask[t_z, t_x] = ⟦t_z <= t_x⟧."""


def banded(width: int) -> StructuralMask:
    """A sliding window: a token may attend itself and the ``width - 1`` tokens before it, t_x - width < t_z <= t_x.

    Args:
        width: tokens in the window, at least 1.

    Raises:
        ValueError: if width is not a positive integer.

    Example:
        >>> banded(2).dense(3, 3).astype(int).tolist()
        [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    """
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"banded: expected a width of at least 1 token, got {width!r}")
    return StructuralMask(unidirectional=True, width=width)


def padding(length: Int[Array, ""] | int) -> StructuralMask:
    """Only the first ``length`` context tokens may be attended, t_z < length.

    Args:
        length: tokens that are not padding; an integer, or a scalar array, which may be traced.

    Raises:
        TypeError: if length is not an integer scalar.
        ValueError: if length is negative (where its value is known).

    Example:
        >>> (UNIDIRECTIONAL & padding(1)).dense(2, 2).astype(int).tolist()
        [[1, 1], [0, 0]]
    """
    if isinstance(length, bool) or not jnp.issubdtype(jnp.result_type(length), jnp.integer) or jnp.ndim(length):
        raise TypeError(f"padding: expected an integer length, got {length!r}; jax.vmap over the lengths of a batch")
    if isinstance(length, int) and length < 0:
        raise ValueError(f"padding: expected a length >= 0, got {length}")
    return StructuralMask(length=length)


def documents(numbers: Int[Array, "*batch l"]) -> StructuralMask:
    """Packed sequences: a token may attend the tokens of its own document only.

    Args:
        numbers: for each token, the number of the document that it belongs to.

    Example:
        >>> documents(jnp.array([1, 1, 2])).dense(3, 3).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    return StructuralMask(documents_z=numbers, documents_x=numbers)
