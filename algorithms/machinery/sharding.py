"""What each device of the mesh in use computes: where activations lie, and which share of a loop a device takes.

What an axis of the mesh divides follows from its name: ``context`` the tokens of a sequence; ``model`` the heads, the
hidden units and the vocabulary, and between the steps of a layer the tokens, too; every other one the sequences of a
batch. An axis that does not divide a size evenly leaves it whole. XLA inserts the communication. Inside of
``jax.shard_map``, and with axes of type Explicit, nothing is divided here: there the caller does.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

MODEL, CONTEXT = "model", "context"
"""The mesh axes that divide something else than the sequences of a batch."""

Axes = tuple[str, ...]


def split_explicitly(X: Array) -> bool:
    """Whether a mesh of several devices has its axes in the types of arrays, where nothing may be moved unasked."""
    mesh = _mesh(X)
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return any(types[axis] == AxisType.Explicit for axis in _several(mesh))


def devices_sharing(X: Array) -> int:
    """How many devices of the mesh in use XLA itself divides a program between."""
    return math.prod(_several(_mesh(X)).values())


def shard_residual_stream(X: Array) -> Array:
    """The residual stream ``[d, *batch, l]``: sequences and tokens are divided, the tokens by ``model``, too."""
    return _constrained(X, tokens=(CONTEXT, MODEL))


def shard_layer_input(X: Array) -> Array:
    """What heads and hidden units are computed from, ``[d, *batch, l]``: all devices of ``model`` have the same."""
    return _constrained(X, tokens=(CONTEXT,))


def shard_hidden_units(X: Array) -> Array:
    """``[d_mlp, *batch, l]``: ``model`` divides the rows."""
    return _constrained(X, tokens=(CONTEXT,), rows=(MODEL,))


def _constrained(X: Array, *, tokens: Axes, rows: Axes = ()) -> Array:
    """X, put where the mesh in use has its columns; left alone, XLA finds other places and moves more."""
    sizes = _sizes(X)
    if not sizes or X.ndim < 2:
        return X
    of_rows, of_tokens = _dividing(sizes, rows, X.shape[0]), _dividing(sizes, tokens, X.shape[-1])
    sequences = [_dividing(sizes, _of_sequences(sizes), n) for n in X.shape[1:-1][:1]]
    spec = P(of_rows, *sequences, *[()] * (X.ndim - 2 - len(sequences)), of_tokens)
    return jax.lax.with_sharding_constraint(X, NamedSharding(_mesh(X), spec))


def tokens_are_split(Q: Array) -> bool:
    """Whether `split_attention` gives a device only some of the queries ``[…, l_x]`` of a sequence."""
    return bool(_dividing(_sizes(Q), (CONTEXT,), Q.shape[-1]))


def split_attention(
    kernel: Callable[..., Array],
    tiles: tuple[Array, ...],
    by_distance: tuple[Array, ...],
    mask: Any,
    of_mask: Any,
    seeds: Array | None,
    balanced: bool = False,
) -> Array:
    """``kernel(*tiles, by_distance, mask, seeds, first)``, by each device of the mesh for its own heads and queries.

    XLA cannot split a library's kernel, and splits loops over tiles by sending all of them to all devices.

    Args:
        kernel: returns one array like the queries; ``first`` is the position of the first of them, or None for 0.
        tiles: queries, keys and values, ``[H, d, B, l]``.
        by_distance: nothing, or U ``[H, d_r, B, l]``, of the queries, and P ``[H, d_r, n]``.
        mask: a pytree, whose arrays belong to all heads.
        of_mask: for each of these arrays, which of its axes is that of the sequences, and which that of the queries;
            None where it has no such axis.
        seeds: ``[H, B, 2]``, or None.
        balanced: a query costs as much as there are tokens before it: where ``context`` divides the queries into
            n parts, a device computes half i and half 2n − 1 − i of all 2n halves, so that each has as much to do.
    """
    Q = tiles[0]
    sizes = _sizes(Q)
    if not sizes:
        return kernel(*tiles, by_distance, mask, seeds, None)
    _, _, B, l_x = Q.shape
    heads, sequences = _dividing(sizes, (MODEL,), len(tiles[1])), _dividing(sizes, _of_sequences(sizes), B)
    tokens = _dividing(sizes, (CONTEXT,), l_x)
    queries, context = P(heads, None, sequences, tokens), P(heads, None, sequences)

    def spec(array, of_array):
        found = dict(zip(of_array, (sequences, tokens), strict=True))
        return P(*(found.get(axis, ()) for axis in range(array.ndim)))

    def of_device(*arguments):
        if not tokens:
            return kernel(*arguments, None)
        if balanced and arguments[0].shape[-1] % 2 == 0:
            return _in_halves(kernel, arguments, in_specs, sizes[CONTEXT])
        return kernel(*arguments, jax.lax.axis_index(CONTEXT) * arguments[0].shape[-1])

    of_seeds = None if seeds is None else P(heads, sequences)
    of_U_P = (queries, P(heads))[: len(by_distance)]
    in_specs = queries, context, context, of_U_P, jax.tree.map(spec, mask, of_mask), of_seeds
    options = {"mesh": _mesh(Q), "axis_names": set(sizes), "check_vma": False}
    return jax.shard_map(of_device, in_specs=in_specs, out_specs=queries, **options)(*tiles, by_distance, mask, seeds)


def _in_halves(kernel: Callable[..., Array], arguments: tuple[Any, ...], specs: Any, n: int) -> Array:
    """A device's part of the n, whose halves other devices compute: those of equal numbers min(h, 2n − 1 − h)."""
    i, l = jax.lax.axis_index(CONTEXT), arguments[0].shape[-1] // 2
    computed = []
    for which in (0, 1):  # of its halves, 2i and 2i + 1, each device sends one to another one
        halves = [2 * device + which for device in range(n)]
        there = [(device, min(h, 2 * n - 1 - h)) for device, h in enumerate(halves)]

        def sent(array, spec, which=which, there=there):
            if CONTEXT not in spec:
                return array
            half = jax.lax.slice_in_dim(array, which * l, (which + 1) * l, axis=spec.index(CONTEXT))
            return jax.lax.ppermute(half, CONTEXT, there)

        received = jax.tree.map(sent, arguments, specs)
        h = jax.numpy.where(i % 2 == which, i, 2 * n - 1 - i)
        computed.append(jax.lax.ppermute(kernel(*received, h * l), CONTEXT, [(b, a) for a, b in there]))
    return jax.numpy.concatenate(computed, axis=-1)


@dataclasses.dataclass(frozen=True)
class Shares:
    """How the devices of the mesh in use divide a product of ``[n, d]`` and ``[d, B, l]``; by default they do not."""

    mesh: Any = None  # the mesh in use
    rows: Axes = ()  # the axis that divides the rows of W
    sequences: Axes = ()  # the axes that divide B
    tokens: Axes = ()  # the axis that divides l
    inner: Axes = ()  # the axis over which each device keeps its columns of the gradient of W

    @classmethod
    def of(cls, W: Array, X: Array) -> "Shares":
        """Those of W and X in the mesh in use."""
        sizes = _sizes(X)
        if not sizes or X.ndim != 3:
            return cls()
        sequences = _dividing(sizes, _of_sequences(sizes), X.shape[1])
        inner = _dividing(sizes, sequences[-1:], W.shape[1])
        rows, tokens = _dividing(sizes, (MODEL,), W.shape[0]), _dividing(sizes, (CONTEXT,), X.shape[2])
        return cls(_mesh(X), rows, sequences, tokens, inner)

    def each(self, of_device: Callable[..., Any], arguments: tuple[Any, ...], specs: tuple[Any, ...], out: Any) -> Any:
        """``of_device`` of each device's shares of the arguments, which lie by these specs, as the results do."""
        if self.mesh is None:
            return of_device(*arguments)
        names = set(_several(self.mesh))
        options = {"mesh": self.mesh, "axis_names": names, "check_vma": False}
        return jax.shard_map(of_device, in_specs=specs, out_specs=out, **options)(*arguments)

    def of_weights(self, *, gradient: bool = False) -> P:
        """Where W ``[n, d]`` lies, and its gradient."""
        return P(self.rows, self.inner if gradient else ())

    @property
    def columns(self) -> Axes:
        """The axes that divide the columns of X."""
        return (*self.sequences, *self.tokens)

    def of_rows(self) -> P:
        """Where an array ``[n]`` lies."""
        return P(self.rows)

    def of_columns(self, *rows: None) -> P:
        """Where an array ``[*rows, B, l]`` lies."""
        return P(*rows, self.sequences, self.tokens)

    def first_row(self, n: int) -> Any:
        """The number of a device's first row, if it has n."""
        return jax.lax.axis_index(self.rows) * n if self.rows else 0

    def sum_over_rows(self, array: Array) -> Array:
        """The sum over the devices that have other rows."""
        return jax.lax.psum(array, self.rows) if self.rows else array

    def max_over_rows(self, array: Array) -> Array:
        """The largest of the devices that have other rows."""
        return jax.lax.pmax(array, self.rows) if self.rows else array

    def sum_over_columns(self, dW: Array) -> Array:
        """The sum over the devices that have other columns: of it, each device gets its part along ``inner``."""
        if self.inner and dW.ndim == 2:
            dW = jax.lax.psum_scatter(dW, self.inner, scatter_dimension=1, tiled=True)
            others = tuple(axis for axis in self.columns if axis not in self.inner)
        else:
            others = self.columns
        return jax.lax.psum(dW, others) if others else dW


def _mesh(X: Array) -> Any:
    mesh = jax.typeof(X).sharding.mesh
    return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


def _several(mesh: Any) -> dict[str, int]:
    """The sizes of the mesh axes of several devices that XLA divides a program along."""
    return {axis: size for axis, size in mesh.shape.items() if axis not in mesh.manual_axes and size > 1}


def _sizes(X: Array) -> dict[str, int]:
    """The same, or nothing where the caller says what lies where."""
    return {} if split_explicitly(X) else _several(_mesh(X))


def _of_sequences(sizes: dict[str, int]) -> Axes:
    return tuple(axis for axis in sizes if axis not in (MODEL, CONTEXT))


def _dividing(sizes: dict[str, int], axes: Axes, n: Any) -> Axes:
    """Those of the axes that together divide n evenly."""
    found: Axes = ()
    for axis in axes:
        if axis in sizes and isinstance(n, int) and n % (math.prod(sizes[a] for a in found) * sizes[axis]) == 0:
            found = (*found, axis)
    return found
