"""The mesh axes that divide each parameter, by the paper's symbols, derived from the shapes of θ.

A row of the table has the mesh axes of an array's last axes; leading axes, of layers, are never divided. ``model``
divides computation: heads, hidden units, the vocabulary. ``data`` divides storage: parameters and their optimizer
state, which are gathered where they are used. A mesh axis that does not divide a size evenly leaves it whole. Along
``replica`` and ``context``, parameters are copied.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from algorithms import (
    PAPER,
    VARIANTS,
    DTransformerParams,
    EDTransformerParams,
    ETransformerParams,
    PatchParams,
)
from algorithms.lines import MLP
from algorithms.model.theta import theta_shapes
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


def _axes() -> dict[str, tuple[str, ...]]:
    """The axes of each parameter of the published models, and what none of them has, without those of layers."""
    classes = (PatchParams, ClassifierParams)
    found = {
        name: a.dim_str for params in classes for name, a in params.__annotations__.items() if hasattr(a, "dim_str")
    }
    for variant in (*VARIANTS.values(), PAPER.but(mlp=MLP(gated=True), pooler=True)):
        kinds = (DTransformerParams, EDTransformerParams) * (not variant.embedding.factored)
        for kind in (*kinds, ETransformerParams):
            shapes = jax.tree_util.tree_leaves_with_path(theta_shapes(kind, variant))
            found |= {path[-1].name: shape.axes for path, shape in shapes}
    return {name: tuple(a for a in axes.split() if a not in ("L", "L_enc", "L_dec")) for name, axes in found.items()}


TABLE: dict[str, Row] = {name: _row(axes) for name, axes in _axes().items()}


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
