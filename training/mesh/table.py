"""The mesh axes that divide each parameter, by the paper's symbols, derived from the axes in the annotations.

A row of the table has the mesh axes of an array's last axes; leading axes, of layers, are never divided. ``model``
divides computation: heads, hidden units, the vocabulary. ``data`` divides storage: parameters and their optimizer
state, which are gathered where they are used. A mesh axis that does not divide a size evenly leaves it whole. Along
``replica`` and ``context``, parameters are copied.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from jax.sharding import PartitionSpec as P

from algorithms import (
    AttentionParams,
    DTransformerParams,
    EDTransformerParams,
    ETransformerParams,
    LayerNormParams,
    MHAttentionParams,
    MLPParams,
    PatchParams,
)
from algorithms.model.shapes import annotated_axes
from training.tasks.classify import ClassifierParams

DATA, MODEL = "data", "model"
BOTH = (MODEL, DATA)

DIVIDED = {"H", "H_kv", "H*d_mid", "d_mlp", "N_V"}
"""Axes that ``model`` divides."""
WHOLE = {"l_max", "N_types", "N_C", "n_rows", "n_columns", "k"}
"""Axes that are never divided."""

Row = tuple[str | tuple[str, ...] | None, ...]


def _row(axes: tuple[str, ...]) -> Row:
    """The mesh axes of an array: ``model`` divides the axes above, ``data`` the last of the others."""
    row: list[Any] = [MODEL if axis in DIVIDED else None for axis in axes]
    others = [i for i, axis in enumerate(axes) if axis not in DIVIDED | WHOLE]
    if others:
        row[others[-1]] = DATA
    return tuple(BOTH if len(row) == 1 and entry == MODEL else entry for entry in row)


def _rows(params: type) -> dict[str, Row]:
    """The rows of the arrays of a class, by its annotations."""
    rows = {}
    for name, annotation in params.__annotations__.items():
        axes = annotated_axes(annotation)
        if axes is not None:
            front = {"*stack": ("H",), "*stack_kv": ("H_kv",)} if params is AttentionParams else {}
            rows[name] = _row(tuple(itertools.chain(*(front.get(a, () if "*stack" in a else (a,)) for a in axes))))
    return rows


CLASSES = (
    AttentionParams,
    MHAttentionParams,
    LayerNormParams,
    MLPParams,
    DTransformerParams,
    EDTransformerParams,
    ETransformerParams,
    ClassifierParams,
    PatchParams,
)
TABLE: dict[str, Row] = {name: row for params in CLASSES for name, row in _rows(params).items()}


def spec_of(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> P:
    """Return the partition of a parameter with this symbol, or of its optimizer state, which may have fewer axes."""
    row = TABLE.get(name, ())
    row = (None,) * (len(shape) - len(row)) + row[max(0, len(row) - len(shape)) :]
    return P(*(_dividing(axes, size, sizes) for axes, size in zip(row, shape, strict=True)))


def _dividing(axes: str | tuple[str, ...] | None, size: int, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes that together divide a size evenly."""
    found: tuple[str, ...] = ()
    for axis in (axes,) if isinstance(axes, str) else axes or ():
        n = math.prod(sizes[a] for a in found) * sizes.get(axis, 1)
        if sizes.get(axis, 1) > 1 and size % n == 0:
            found = (*found, axis)
    return found or None
