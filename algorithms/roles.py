"""The roles of θ's arrays for optimizers and meshes, as the lines of its variant declare them (`array`).

Each function takes θ, its shapes, gradients or an optimizer's state, and returns a pytree like it.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from algorithms.machinery.contract import Shape, described
from algorithms.machinery.devices import dividing
from algorithms.model.theta import declared
from algorithms.model.variant import Variant

HEADS = ("H", "H_kv")
DIVIDED = {"H", "H_kv", "H*d_mid", "d_mlp", "N_V"}  # axes that ``model`` divides
WHOLE = {"l_max", "N_types", "N_C", "n_rows", "n_columns", "k"}  # axes that are never divided

MODEL, DATA = "model", "data"


def roles_of(theta: Any) -> Any:
    """The role of each array: ``"matrix"``, ``"embedding"``, ``"unembedding"``, ``"kernel"`` or ``"vector"``.

    Raises:
        ValueError: for an array that no line declares.

    Example:
        >>> config = DTransformerConfig(N_V=5, l_max=4, L=2, H=2, d_e=6, d_mlp=8)
        >>> roles = roles_of(init_d_transformer(jax.random.key(0), config))
        >>> roles.W_e, roles.layers.attention.W_o, roles.W_u, roles.norm.gamma
        ('embedding', 'matrix', 'unembedding', 'vector')
    """
    return _map_declared(lambda name, shape: shape.role_of(name), theta)


def weight_decay_mask(theta: Any) -> Any:
    """Whether each array decays: matrices, kernels and the unembedding do, and embeddings, biases and norms do not.

    For the argument ``mask`` of optax's optimizers.

    Raises:
        ValueError: for an array that no line declares.
    """
    return jax.tree.map(lambda role: role in ("matrix", "kernel", "unembedding"), roles_of(theta))


def muon_dimensions(theta: Any) -> Any:
    """The axes of the matrices that Muon orthogonalizes, for ``optax.contrib.muon``; None for the rest, Adam's part.

    Each layer and each expert has its matrix ``[d_out, d_in]``. The heads of a layer are joined into one matrix, as
    where models store W_q as ``[H·d_attn, d_e]``, unless each head has a square matrix of its own rows.

    Raises:
        ValueError: for an array that no line declares, and for a matrix of a single axis.
    """
    from optax.contrib import MuonDimensionNumbers

    heads = _own_axes(theta, "heads").union(HEADS)

    def of_array(name: str, shape: Shape) -> Any:
        axes = [axis for axis in shape.axes.split() if not is_of_layers(axis)]
        if shape.role_of(name) != "matrix":
            return None
        if len(axes) < 2:
            raise ValueError(
                f"{name}: expected the axes d_out d_in of a matrix, got [{shape.axes}]; declare it with role='vector'"
            )
        joined: list[tuple[int, ...]] = []
        for i in range(-len(axes), 0):
            follows_heads = len(axes) > 2 and i > -len(axes) and axes[i - 1] in heads and axes[-2] != axes[-1]
            joined = [*joined[:-1], (*joined[-1], i)] if follows_heads else [*joined, (i,)]
        return MuonDimensionNumbers(reduction_axis=joined[-1], output_axis=joined[-2])

    return _map_declared(of_array, theta)


def layer_axes(theta: Any) -> Any:
    """The number of leading axes of layers of each array: 1 if it is stacked."""
    return _map_declared(lambda name, shape: sum(map(is_of_layers, shape.axes.split())), theta)


def partition_specs(
    theta: Any, mesh: Mesh | AbstractMesh, *, data: str | None = DATA, model: str | None = MODEL
) -> Any:
    """The ``PartitionSpec`` of each array in a mesh, for ``jax.sharding.NamedSharding(mesh, spec)``.

    ``model`` divides computation: heads, hidden units, experts and the vocabulary, so no array is gathered along it.
    ``data`` divides storage: arrays are gathered along it where they are used. A size that a mesh axis does not divide
    evenly stays whole, and so do layers, and arrays that no line declares, such as an optimizer's number of updates.

    Args:
        theta: θ, or an optimizer's state.
        mesh: the mesh.
        data: the name of the axis that divides storage; None: none does.
        model: the name of the axis that divides computation; None: none does.

    Raises:
        ValueError: if the mesh lacks a name, other than one of the defaults.

    Example:
        >>> config = DTransformerConfig(N_V=8, l_max=4, L=2, H=2, d_e=4, d_mlp=8)
        >>> theta = jax.eval_shape(lambda: init_d_transformer(jax.random.key(0), config))
        >>> mesh = jax.sharding.AbstractMesh((4, 2), ("dp", "tp"))
        >>> specs = partition_specs(theta, mesh, data="dp", model="tp")
        >>> specs.layers.mlp.W_mlp1 == jax.sharding.PartitionSpec(None, "tp", "dp")
        True
    """
    sizes = {axis: size for axis, size in mesh.shape.items() if size > 1}
    for name, default in ((data, DATA), (model, MODEL)):
        if name not in (None, default, *mesh.shape):
            axes = ", ".join(mesh.shape)
            raise ValueError(f"partition_specs: expected axes of the mesh, which are {axes}, got {name}")
    shapes, widths = declared(theta), (f"d_mlp_{getattr(line, 'd_mlp', None)}" for line in _own_lines(theta))
    own = _own_axes(theta, "divided").union(widths)

    def of_leaf(path: Any, leaf: Any) -> P:
        row = _row(shapes[path], own, data, model) if path in shapes else ()
        if len(leaf.shape) < len(row):  # of an optimizer that stores sums over an axis
            return P()
        row = ((),) * (len(leaf.shape) - len(row)) + row
        return P(*(dividing(sizes, names, size) or None for names, size in zip(row, leaf.shape, strict=True)))

    return jax.tree_util.tree_map_with_path(of_leaf, theta)


def _map_declared(function: Callable[[str, Shape], Any], tree: Any) -> Any:
    shapes = declared(tree)

    def of_leaf(path, leaf):
        if path not in shapes:
            where = jax.tree_util.keystr(path).removeprefix(".") or "theta"
            raise ValueError(
                f"{where}: expected an array that a line declares, as in the parameters of Algorithms 8 to 10, got "
                f"{described(leaf)}; give these parameters alone"
            )
        return function(path[-1].name, shapes[path])

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def _own_lines(tree: Any) -> list[Any]:
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Variant))
    variants = [node for node in nodes if isinstance(node, Variant)]
    return [line for variant in variants for line in (*variant.attentions, *variant.mlps) if line]


def _own_axes(tree: Any, which: Literal["heads", "divided"]) -> frozenset[str]:
    """The axes that the lines of a tree's variants have, and that are of heads or that ``model`` divides."""
    return frozenset(axis for line in _own_lines(tree) for axis in getattr(line, which))


def _row(shape: Shape, own: frozenset[str], data: str | None, model: str | None) -> tuple[tuple[str, ...], ...]:
    """The mesh axes of each axis: ``model`` divides the first of those above or of a line, ``data`` the last other."""
    axes = shape.axes.split()
    in_layers = [i for i, axis in enumerate(axes) if not is_of_layers(axis)]
    divided = [i for i in in_layers if axes[i] in DIVIDED | own][:1]
    others = [i for i in in_layers if i not in divided and axes[i] not in WHOLE]
    row: list[tuple[str | None, ...]] = [()] * len(axes)
    for i in divided:
        row[i] = (model, data) if len(in_layers) == 1 else (model,)
    for i in others[-1:]:
        row[i] = (data,)
    return tuple(tuple(name for name in names if name is not None) for names in row)


def is_of_layers(axis: str) -> bool:
    """Whether an axis is one of layers, of one stack or of several, which are never divided."""
    return axis.partition("_")[0] == "L"
