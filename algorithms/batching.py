"""What ``jax.vmap`` of an algorithm does: a batch of sequences is a wider matrix.

Every position-wise line (``W X + b 1ᵀ``, layer norm, MLP, unembedding) is the same for any number of columns. So
the bodies of the algorithms are written for ``X: [d, *batch, l]``: ``*batch`` is empty for one sequence, and under
``vmap`` the sequences stand side by side as further columns of the same matrix; only attention tells them apart.
JAX's own rule would batch every line for itself and move the batch in front of the matrix at every layer.

``side_by_side`` is that rule, as a JAX primitive, which whatever transformation comes first dissolves: ``vmap``
widens the matrix, and differentiation, lowering and evaluation replace it by the body itself. So
``grad(vmap(f))`` differentiates the wide body once, and ``vmap(grad(f))`` still gives a gradient for every sequence.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from algorithms.masks import Mask, StructuralMask

__all__ = ["PerSequence", "columns", "flat_mask", "mask_axes", "of_mask", "side_by_side", "tokens"]


class PerSequence(NamedTuple):
    """A pytree of arrays that belong to one sequence each.

    Attributes:
        arrays: the arrays.
        axis: where their batch axes stand.
        ranks: for each array, its rank in a single sequence, where a whole batch may share it; None where it may not.
    """

    arrays: Any
    axis: int
    ranks: tuple[int, ...] | None = None


def columns(X: Any) -> PerSequence:
    """A matrix whose columns are the tokens of one sequence; a batch of them is ``[d, *batch, l]``."""
    return PerSequence(X, 1)


def tokens(x: Any) -> PerSequence:
    """The tokens, the length or the key of one sequence; a batch of them has the batch in front."""
    return PerSequence(x, 0)


def of_mask(mask: Mask) -> PerSequence:
    """A mask, of which one serves the whole batch unless its arrays have the batch in front."""
    if not isinstance(mask, StructuralMask):
        return PerSequence(mask, 0, (2,))
    fields = ((mask.length, 0), (mask.documents_z, 1), (mask.documents_x, 1))
    return PerSequence(mask, 0, tuple(rank for array, rank in fields if array is not None))


def mask_axes(mask: Mask) -> Any:
    """The ``in_axes`` that take one batch axis off a mask: 0 for its arrays that have one, None for the others."""
    leaves, treedef = jax.tree.flatten(mask)
    ranks = of_mask(mask).ranks or ()
    return treedef.unflatten([0 if jnp.ndim(a) > rank else None for a, rank in zip(leaves, ranks, strict=True)])


def flat_mask(mask: Mask, batch_axes: int) -> Mask:
    """A mask whose arrays have the batch axes, if they have any, as one."""
    leaves, treedef = jax.tree.flatten(mask)
    ranks = of_mask(mask).ranks or ()
    flat = [
        a if jnp.ndim(a) == rank else a.reshape(-1, *a.shape[batch_axes:])
        for a, rank in zip(leaves, ranks, strict=True)
    ]
    return treedef.unflatten(flat)


def side_by_side(body: Callable[..., Any], sequences: Sequence[PerSequence], shared: Any) -> jax.Array:
    """``body(*sequences, shared)`` for one sequence, or under ``vmap`` for several, as columns of a wider matrix.

    Args:
        body: takes the arrays of each of ``sequences``, with any number of batch axes, and ``shared``; returns a matrix
            ``[rows, *batch, columns]``.
        sequences: what belongs to one sequence each.
        shared: a pytree of what all sequences have in common: the parameters.
    """
    arrays, treedef = jax.tree.flatten(([s.arrays for s in sequences], shared))
    layout = []
    for s in sequences:
        n = len(jax.tree.leaves(s.arrays))
        layout += [(s.axis, rank) for rank in s.ranks or (None,) * n]

    def flat_body(*arrays):
        per_sequence, shared = treedef.unflatten(arrays)
        return body(*per_sequence, shared)

    return _side_by_side.bind(*arrays, body=flat_body, layout=tuple(layout))


_side_by_side = Primitive("side_by_side")


@_side_by_side.def_impl
def _evaluate(*arrays, body, layout):
    return body(*arrays)


@_side_by_side.def_abstract_eval
def _shape(*avals, body, layout):
    out = jax.eval_shape(body, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    return ShapedArray(out.shape, out.dtype)


def _differentiate(primals, tangents, *, body, layout):
    active = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def of_active(*arrays):
        everything = list(primals)
        for i, array in zip(active, arrays, strict=True):
            everything[i] = array
        return body(*everything)

    return jax.jvp(of_active, [primals[i] for i in active], [tangents[i] for i in active])


def _widen(arrays, axes, *, body, layout):
    """Put the batch in front of the other batch axes; where the parameters differ too, batch line by line instead."""
    size = next(a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None)
    if any(axis is not None for axis in axes[len(layout) :]):
        return jax.vmap(body, in_axes=axes, axis_size=size)(*arrays), 0
    wide = []
    for array, axis, (position, rank) in zip(arrays, axes, layout, strict=False):
        if axis is not None:
            wide.append(jnp.moveaxis(array, axis, position))
        elif rank is not None and jnp.ndim(array) == rank:
            wide.append(array)
        else:
            wide.append(jnp.repeat(jnp.expand_dims(array, position), size, position))
    return _side_by_side.bind(*wide, *arrays[len(layout) :], body=body, layout=layout), 1


ad.primitive_jvps[_side_by_side] = _differentiate
batching.primitive_batchers[_side_by_side] = _widen
mlir.register_lowering(
    _side_by_side, mlir.lower_fun(lambda *arrays, body, layout: body(*arrays), multiple_results=False)
)
