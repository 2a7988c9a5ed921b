"""The mesh axes that divide each parameter, by the paper's symbols, derived from the shapes of θ.

A row of the table has the mesh axes of an array's last axes; leading axes, of layers, are never divided. ``model``
divides computation: heads, hidden units, the vocabulary. ``data`` divides storage: parameters and their optimizer
state, which are gathered where they are used. A mesh axis that does not divide a size evenly leaves it whole. Along
``replica`` and ``context``, parameters are copied.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from algorithms import PAPER, VARIANTS, DTransformerParams, EDTransformerParams, ETransformerParams, Variant
from algorithms.gato import PatchParams
from algorithms.lines import MLP
from algorithms.machinery.contract import factors_of
from algorithms.model.theta import theta_shapes
from training.tasks.classify import ClassifierParams

DATA, MODEL = "data", "model"
BOTH = (MODEL, DATA)

LAYERS = ("L", "L_enc", "L_dec", "L_first")  # axes of layers, which are never divided
DIVIDED = {"H", "H_kv", "H*d_mid", "d_mlp", "d_first", "N_V"}  # axes that ``model`` divides
WHOLE = {"l_max", "N_types", "N_C", "n_rows", "n_columns", "k"}  # axes that are never divided

Row = tuple[str | tuple[str, ...] | None, ...]


def _row(of_array: str, own: frozenset[str]) -> Row:
    """The mesh axes of an array: ``model`` divides the first of those above or of a line, ``data`` the last other."""
    axes = [axis for axis in of_array.split() if factors_of(axis)[0] not in LAYERS]
    divided = [i for i, axis in enumerate(axes) if axis in DIVIDED | own][:1]
    row: list[Any] = [MODEL if i in divided else None for i in range(len(axes))]
    others = [i for i, axis in enumerate(axes) if i not in divided and axis not in WHOLE]
    if others:
        row[others[-1]] = DATA
    return tuple(BOTH if len(row) == 1 and entry == MODEL else entry for entry in row)


def symbol_of(path: Any) -> str:
    """Return the symbol of the parameter at a path: its last name, or ``experts.W_mlp1`` for one of all experts."""
    names = [key.name for key in path if hasattr(key, "name")]
    return ".".join(names[-2:] if names[-2:-1] == ["experts"] else names[-1:])


def _axes() -> dict[str, str]:
    """The axes of each parameter of the published models, and what none of them has."""
    found = PatchParams.__annotations__ | ClassifierParams.__annotations__
    found = {name: array.dim_str for name, array in found.items() if hasattr(array, "dim_str")}
    for variant in (*VARIANTS.values(), PAPER.but(mlp=MLP(gated=True), pooler=True)):
        found |= _axes_of(variant)
    return found


def _axes_of(variant: Variant) -> dict[str, str]:
    """The axes of each parameter of a variant."""
    kinds = (DTransformerParams, EDTransformerParams) * (not variant.embedding.factored) + (ETransformerParams,)
    kinds = kinds if variant.first is None else kinds[:1]
    every = [theta_shapes(kind, variant) for kind in kinds]
    leaves = [leaf for shapes in every for leaf in jax.tree_util.tree_leaves_with_path(shapes)]
    return {symbol_of(path): shape.axes for path, shape in leaves}


OWN = frozenset(axis for variant in VARIANTS.values() if variant.mlp for axis in variant.mlp.divided)
"""The axes of the published models' lines that ``model`` divides, besides `DIVIDED`."""

TABLE: dict[str, Row] = {name: _row(axes, OWN) for name, axes in _axes().items()}


@functools.cache
def _table_of(variant: Variant) -> dict[str, Row]:
    """The rows of a variant, whose lines may have symbols and axes of their own."""
    own = frozenset(axis for line in (*variant.attentions, variant.mlp) if line for axis in line.divided)
    return {name: _row(axes, own) for name, axes in _axes_of(variant).items()}


def table_of(tree: Any) -> dict[str, Row]:
    """Return the table for parameters or optimizer state, which hold their variant."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Variant))
    variants = dict.fromkeys(node for node in nodes if isinstance(node, Variant))
    return {name: row for rows in (TABLE, *map(_table_of, variants)) for name, row in rows.items()}


def spec_of(name: str, shape: tuple[int, ...], sizes: Mapping[str, int], table: Mapping[str, Row] = TABLE) -> P:
    """Return the partition of a parameter with this symbol, or of its optimizer state, which may have fewer axes."""
    row = table.get(name, ())
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
