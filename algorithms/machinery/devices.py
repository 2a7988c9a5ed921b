"""Where a program runs: the platform that it is compiled for, and a mesh of devices that share the work.

The name of a mesh axis says what it divides: ``context`` the tokens of a sequence; ``model`` the heads, the hidden
units and the vocabulary, and between the steps of a layer also the tokens; any other axis the sequences of a batch.
`mesh_axes` gives other names these meanings. A size that is not a multiple of the axis is not divided. XLA inserts the
communication. Inside ``jax.shard_map`` nothing is divided here: the caller decides. Axes of type Explicit, which
``jax.make_mesh`` makes, are treated as Auto inside a public function (`with_auto_axes`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
"""Name of a platform in ``jax.export`` → the platform of its devices."""


def for_platform(platform: str) -> AbstractContextManager[Any]:
    """A context in which functions are traced with the kernels of a platform that this machine need not have.

    Kernels are chosen during tracing, but JAX learns the target platform only when it lowers the traced program::

        with for_platform("tpu"):
            exported = jax.export.export(jax.jit(f), platforms=("tpu",))(x)

    To export cuDNN's kernel, JAX needs ``disabled_checks`` with ``DisabledSafetyCheck.custom_call`` of
    ``"__cudnn$fmhaSoftmax"`` and ``"__cudnn$fmhaSoftmaxBackward"``, or with documents and other masks as arrays of
    ``"__cudnn$fmhaScaleBiasSoftmax"`` and ``"__cudnn$fmhaScaleBiasSoftmaxBackward"``. A program for ``"cpu"`` uses
    no instructions that only some processors have. In the context of a mesh, the platform is that of its devices.

    Args:
        platform: ``"cpu"``, ``"cuda"`` or ``"tpu"``, as in ``jax.export``.

    Raises:
        ValueError: for any other platform.
    """
    if platform not in PLATFORMS:
        raise ValueError(f"for_platform: expected one of {', '.join(map(repr, PLATFORMS))}, got {platform!r}")
    device = AbstractDevice(device_kind=platform, num_cores=None, platform=PLATFORMS[platform])
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), (), abstract_device=device))


def platform_of(X: Array) -> str:
    """The target platform: that of the mesh of X, of the mesh in use, or of the default device."""
    for mesh in (jax.typeof(X).sharding.mesh, jax.sharding.get_abstract_mesh()):
        if getattr(mesh, "abstract_device", None) is not None:
            return mesh.abstract_device.platform
    device = getattr(jax.config, "jax_default_device", None)  # a device, or the name of a platform
    return getattr(device, "platform", device) or jax.default_backend()


def for_this_machine() -> bool:
    """Whether a program for a CPU runs on this machine's; under ``for_platform`` it may run on any other."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.abstract_device is None or bool(mesh.axis_names)


CPU_INFO = Path("/proc/cpuinfo")
"""The file in which Linux lists the processor's features, the only one that the package reads."""


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether this machine's processor multiplies bfloat16 faster than float32: with AMX, or with AMD's AVX-512.

    Intel's AVX-512 runs bfloat16 at half the speed of float32. False if the processor's features cannot be read.
    """
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "amx_bf16" in flags or ("avx512_bf16" in flags and "AuthenticAMD" in text)


T = TypeVar("T")
Axes = tuple[str, ...]


class _Names(NamedTuple):
    model: str = "model"
    context: str = "context"
    data: Axes | None = None  # None: all others
    mapped: Axes = ()  # axes that divide what `jax.vmap` maps


_names = jax.make_user_context(default_value=_Names())


def mesh_axes(
    *, model: str = "model", context: str = "context", data: str | Axes | None = None
) -> AbstractContextManager[Any]:
    """A context in which the axes of a mesh have these names; by default ``data`` is all axes but the other two.

    Programs are compiled in it and in the mesh::

        mesh = jax.make_mesh((4, 2), ("dp", "tp"))
        with jax.set_mesh(mesh), mesh_axes(model="tp", data="dp"):
            theta = step(theta, x)

    Args:
        model: the axis that divides heads, hidden units and the vocabulary.
        context: the axis that divides the tokens of a sequence.
        data: the axis or axes that divide the sequences of a batch.

    Raises:
        TypeError: if a name is not a string.
        ValueError: if two axes have the same name; and where a function is traced, if the mesh lacks a given name.
    """
    sequences = (data,) if isinstance(data, str) else data
    names = [model, context, *(sequences or ())]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"mesh_axes: expected the names of mesh axes, got {name!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"mesh_axes: expected each axis once, got {', '.join(names)}")
    return _names(_Names(model, context, sequences and tuple(sequences)))


def explicit_mesh(arguments: Any) -> Any:
    """The mesh in use, or else that of an argument, if it has axes of type Explicit; None if there is none.

    Also None inside a ``jax.shard_map`` over other axes where these divide no argument: JAX cannot differentiate
    `with_auto_axes` there.
    """
    mesh, is_divided = jax.sharding.get_abstract_mesh(), False
    for leaf in jax.tree.leaves(arguments):
        if isinstance(leaf, Array):
            sharding = jax.typeof(leaf).sharding
            mesh = mesh if mesh.explicit_axes else sharding.mesh
            is_divided |= not {*sharding.spec} <= {None}
    return mesh if mesh.explicit_axes and (is_divided or not mesh.manual_axes) else None


def spec_of(array: Any) -> tuple[Any, ...]:
    """For each axis of an array the Explicit mesh axes that divide it."""
    return tuple(jax.typeof(array).sharding.spec)


def with_auto_axes(function: Callable[..., Any], arguments: Any, mesh: Any, specs: Any) -> Any:
    """``function(arguments)``, with the Explicit axes of the mesh as Auto inside, since JAX would ask for a sharding of
    every product and lookup; ``specs`` are the shardings of the results.
    """
    of_results = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    mapped = tuple(axis for axis in mesh.explicit_axes if _divides_a_mapped_axis(axis, mesh))
    with _names(_names.value._replace(mapped=mapped)):
        return jax.sharding.auto_axes(function, axes=mesh.explicit_axes, out_sharding=of_results)(arguments)


def _divides_a_mapped_axis(axis: str, mesh: Any) -> bool:
    """Whether `jax.vmap` maps an array along an axis that this mesh axis divides, so that nothing else may use it."""
    try:
        identity = jax.shard_map(lambda x: x, mesh=mesh, axis_names={axis}, in_specs=P(), out_specs=P())
        jax.eval_shape(identity, jax.ShapeDtypeStruct((), bool))
    except ValueError:  # JAX has no public function to ask
        return True
    return False


def devices_sharing(X: Array) -> int:
    """The number of devices over which XLA divides a program."""
    return math.prod(_several(_mesh(X)).values())


def shard(X: Array, model: Literal["tokens", "rows"] | None) -> Array:
    """X ``[d, *batch, l]``, its sequences and tokens divided; left alone, XLA picks shardings that move more data.

    The mesh axis ``model`` divides also the tokens of the residual stream, or the rows of hidden units; None: the input
    of heads and hidden units is replicated over it.
    """
    sizes = _sizes(X)
    if not sizes or X.ndim < 2:
        return X
    names = _names.value
    tokens = (names.context, names.model) if model == "tokens" else (names.context,)
    of_rows = dividing(sizes, (names.model,) if model == "rows" else (), X.shape[0])
    of_tokens = dividing(sizes, tokens, X.shape[-1])
    spec = P(of_rows, *_of_batch(sizes, X), of_tokens)
    return jax.lax.with_sharding_constraint(X, NamedSharding(_mesh(X), spec))


def tokens_are_split(Q: Array) -> bool:
    """Whether `split_attention` gives a device only some of the queries ``[…, l_x]`` of a sequence."""
    return bool(dividing(_sizes(Q), (_names.value.context,), Q.shape[-1]))


def split_attention(
    kernel: Callable[..., Array], tiles: tuple[Array, ...], scores: Any, axes: Callable[[], Any], balanced: bool = False
) -> Array:
    """``kernel(*tiles, scores, first)``, run by each device for its heads and queries.

    XLA cannot split a library's kernel, and splits a loop over tiles by sending all tiles to all devices.

    Args:
        kernel: returns one array like the queries; ``first`` is the position of the first query, or None for 0.
        tiles: queries, keys and values, ``[H, d, B, l]``.
        scores: a pytree of arrays, its further argument.
        axes: returns for each of these arrays its axes of heads, of sequences and of queries; None for one that it
            lacks.
        balanced: whether the cost of a query grows with its position. If so, and ``context`` divides the queries into
            n parts, device i computes halves i and 2n − 1 − i of the 2n half parts, so that all have the same work.
    """
    Q = tiles[0]
    sizes = _sizes(Q)
    if not sizes:
        return kernel(*tiles, scores, None)
    _, _, B, l_x = Q.shape
    axis_of_tokens = _names.value.context
    heads, sequences = dividing(sizes, (_names.value.model,), len(tiles[1])), dividing(sizes, _of_sequences(sizes), B)
    tokens = dividing(sizes, (axis_of_tokens,), l_x)
    queries, context = P(heads, None, sequences, tokens), P(heads, None, sequences)

    def spec(array, of_array):
        found = dict(zip(of_array, (heads, sequences, tokens), strict=True))
        return P(*(found.get(axis, ()) for axis in range(array.ndim)))

    def of_device(*arguments):
        if not tokens:
            return kernel(*arguments, None)
        if balanced and arguments[0].shape[-1] % 2 == 0:
            return _in_halves(kernel, arguments, in_specs, axis_of_tokens, sizes[axis_of_tokens])
        return kernel(*arguments, jax.lax.axis_index(axis_of_tokens) * arguments[0].shape[-1])

    in_specs = queries, context, context, jax.tree.map(spec, scores, axes())
    return _on_each_device(of_device, _mesh(Q), in_specs, queries)(*tiles, scores)


def _in_halves(kernel: Callable[..., Array], arguments: tuple[Any, ...], specs: Any, axis: str, n: int) -> Array:
    """A device's part of n parts, where half h of the 2n half parts is computed by device min(h, 2n − 1 − h)."""
    i, l = jax.lax.axis_index(axis), arguments[0].shape[-1] // 2
    computed = []
    for which in (0, 1):  # device i holds halves 2i and 2i + 1, and sends half h to the device that computes it
        halves = [2 * device + which for device in range(n)]
        there = [(device, min(h, 2 * n - 1 - h)) for device, h in enumerate(halves)]

        def sent(array, spec, which=which, there=there):
            if axis not in spec:
                return array
            half = jax.lax.slice_in_dim(array, which * l, (which + 1) * l, axis=spec.index(axis))
            return jax.lax.ppermute(half, axis, there)

        received = jax.tree.map(sent, arguments, specs)
        h = jax.numpy.where(i % 2 == which, i, 2 * n - 1 - i)
        computed.append(jax.lax.ppermute(kernel(*received, h * l), axis, [(b, a) for a, b in there]))
    return jax.numpy.concatenate(computed, axis=-1)


def split_experts(of_device: Callable[..., Array], columns: tuple[Any, ...], experts: Any) -> Array:
    """``of_device(*columns, experts, first)``, run by each device of the mesh for its tokens and experts, and summed.

    XLA would send all tokens to all devices to sort them.

    Args:
        of_device: returns what these experts, of which the first is number ``first``, add to the tokens, ``[d, …]``.
        columns: arrays ``[d, *batch, l]``, or None.
        experts: a pytree of arrays with an axis of all experts in front.
    """
    X, n = columns[0], len(jax.tree.leaves(experts)[0])
    sizes, (model, context, *_) = _sizes(X), _names.value
    if not sizes or X.ndim < 2:
        return of_device(*columns, experts, 0)
    of_experts, tokens = dividing(sizes, (model,), n), dividing(sizes, (context,), X.shape[-1])
    of_columns = *_of_batch(sizes, X), tokens

    def of_share(*arguments):
        *columns, experts = arguments
        here = len(jax.tree.leaves(experts)[0])
        first = jax.lax.axis_index(of_experts) * here if of_experts else 0
        return of_device(*columns, experts, first)[None]

    specs = *[P(None, *of_columns)] * len(columns), P(of_experts)
    return _on_each_device(of_share, _mesh(X), specs, P(of_experts, None, *of_columns))(*columns, experts).sum(0)


@dataclasses.dataclass(frozen=True)
class Shares:
    """How the mesh in use divides a product W X of ``[n, d]`` and ``[d, B, l]``; by default not at all."""

    mesh: Any = None  # the mesh in use
    rows: Axes = ()  # the mesh axis that divides the rows of W
    sequences: Axes = ()  # the mesh axes that divide B
    tokens: Axes = ()  # the mesh axis that divides l
    inner: Axes = ()  # the mesh axis that divides the columns of the gradient of W

    @classmethod
    def of(cls, W: Array, X: Array) -> "Shares":
        """The division of W X in the mesh in use."""
        sizes, names = _sizes(X), _names.value
        if not sizes or X.ndim != 3:
            return cls()
        sequences = dividing(sizes, _of_sequences(sizes), X.shape[1])
        inner = dividing(sizes, sequences[-1:], W.shape[1])
        rows, tokens = dividing(sizes, (names.model,), W.shape[0]), dividing(sizes, (names.context,), X.shape[2])
        return cls(_mesh(X), rows, sequences, tokens, inner)

    def each(self, of_device: Callable[..., Any], X: Array, W: Array, b: Any, *of_columns: Array, out: Any) -> Any:
        """``of_device(X, W, b, *of_columns)`` of each device's shares; ``out`` is the sharding of the results.

        b is ``[n]`` or None, and the other arrays are ``[B, l]``.
        """
        if self.mesh is None:
            return of_device(X, W, b, *of_columns)
        specs = self.of_columns(None), P(self.rows, ()), P(self.rows), *[self.of_columns()] * len(of_columns)
        return _on_each_device(of_device, self.mesh, specs, out)(X, W, b, *of_columns)

    @property
    def columns(self) -> Axes:
        """The mesh axes that divide the columns of X."""
        return (*self.sequences, *self.tokens)

    def of_columns(self, *rows: None) -> P:
        """The sharding of an array ``[*rows, B, l]``."""
        return P(*rows, self.sequences, self.tokens)

    def of_gradients(self) -> tuple[P, P, P]:
        """The shardings of the gradients of X, W and b."""
        return self.of_columns(None), P(self.rows, self.inner), P(self.rows)

    def first_row(self, n: int) -> Any:
        """The index of a device's first row, if each device has n rows."""
        return jax.lax.axis_index(self.rows) * n if self.rows else 0

    def sum_over_rows(self, array: Array) -> Array:
        """The sum over the devices that divide the rows."""
        return jax.lax.psum(array, self.rows) if self.rows else array

    def max_over_rows(self, array: Array) -> Array:
        """The maximum over the devices that divide the rows."""
        return jax.lax.pmax(array, self.rows) if self.rows else array

    def sum_over_columns(self, dW: Array) -> Array:
        """The sum over the devices that divide the columns of X; each keeps its part, by ``inner``, of a matrix."""
        inner = self.inner if dW.ndim == 2 else ()
        if inner:
            dW = jax.lax.psum_scatter(dW, inner, scatter_dimension=1, tiled=True)
        others = tuple(axis for axis in self.columns if axis not in inner)
        return jax.lax.psum(dW, others) if others else dW


def _on_each_device(of_device: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """``jax.shard_map`` over the mesh axes that divide programs; a spec also serves an argument that is None."""
    options = {"mesh": mesh, "axis_names": set(_several(mesh)), "check_vma": False}
    return jax.shard_map(of_device, in_specs=in_specs, out_specs=out_specs, **options)


def _mesh(X: Array) -> Any:
    mesh = jax.typeof(X).sharding.mesh
    return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


def _several(mesh: Any) -> dict[str, int]:
    """The sizes of the mesh axes that divide a program among several devices; none inside ``jax.shard_map``.

    JAX cannot transpose a ``jax.shard_map`` inside another one over other axes.
    """
    axes = {} if mesh.manual_axes else mesh.shape
    return {axis: size for axis, size in axes.items() if axis not in _names.value.mapped and size > 1}


def _sizes(X: Array) -> dict[str, int]:
    """The sizes of the axes of the mesh in use.

    Raises:
        ValueError: if the mesh lacks an axis that the caller named.
    """
    mesh, (model, context, data, _), default = _mesh(X), _names.value, _Names()
    if mesh.empty:
        return {}
    given = [name for name in (model, context) if name not in default] + [*(data or ())]
    for name in given:
        if name not in mesh.axis_names:
            raise ValueError(
                f"mesh_axes: expected axes of the mesh, which are {', '.join(mesh.axis_names)}, got {name}"
            )
    return _several(mesh)


def _of_sequences(sizes: dict[str, int]) -> Axes:
    names = _names.value
    return tuple(a for a in sizes if (a not in (names.model, names.context) if names.data is None else a in names.data))


def _of_batch(sizes: dict[str, int], X: Array) -> tuple[Axes, ...]:
    """The mesh axes that divide each batch axis of X ``[d, *batch, l]``: the first, if any."""
    return tuple(() if i else dividing(sizes, _of_sequences(sizes), n) for i, n in enumerate(X.shape[1:-1]))


def dividing(sizes: dict[str, int], axes: Axes, n: Any) -> Axes:
    """The axes, of these, that together divide n evenly."""
    found: Axes = ()
    for axis in axes:
        if axis in sizes and isinstance(n, int) and n % (math.prod(sizes[a] for a in found) * sizes[axis]) == 0:
            found = (*found, axis)
    return found


def match_varying_axes(tree: T) -> T:
    """The same arrays, each cast to vary over every manual mesh axis that any of them varies over.

    Inside ``jax.shard_map`` an array varies between devices, or is the same on all. If the inputs of a derivative rule
    or of a loop differ in this, JAX sums the gradients of invariant ones over the devices only if they are cast.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    axes = varies_over(tree)
    return jax.tree.map(lambda leaf: cast_to_vary(leaf, axes), tree) if axes else tree


def cast_to_vary(leaf: Any, axes: frozenset[str]) -> Any:
    """An array, cast to vary over these manual mesh axes, too; anything else as it is."""
    missing = axes - varies_over(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else None
    return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf


def varies_over(tree: Any) -> frozenset[str]:
    """The manual mesh axes over which some array of the tree varies; empty outside ``jax.shard_map``."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return frozenset().union(*(_varying(jax.typeof(array)) for array in arrays))


def _varying(aval: Any) -> frozenset[str]:
    return aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma  # before JAX 0.10
