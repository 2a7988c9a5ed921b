"""How the tensors of a checkpoint correspond to our parameters: one list of entries for both reading and writing.

A tensor of a checkpoint is one of our arrays, one layer or expert of it, or several of them stacked by rows. Only the
orientation differs: `nn.Linear` stores [d_out, d_in] as we do, with the heads stacked by rows; an embedding table,
GPT-2's `Conv1D` and GPT-OSS's experts are transposed.
"""

import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from training.interchange.containers import Tensors
from training.interchange.errors import InterchangeError
from training.runs.named_arrays import flatten

Shape = tuple[int, ...]
NAMED = 3
"""How many of the wrong tensors an error names."""


class Entry(NamedTuple):
    """A tensor of a checkpoint."""

    name: str  # the checkpoint's
    # the dotted names of our arrays, stacked by rows; none if our model has no such tensor, which is then written as
    # zeros of the shape `lead`
    leaves: tuple[str, ...]
    layer: int | None = None  # the layer's number; None for arrays that are not stacked over layers
    transposed: bool = False  # whether its rows are our columns
    lead: Shape = ()  # leading axes of size 1
    aliases: tuple[str, ...] = ()  # other names, which a checkpoint may have in addition or instead
    by_head: bool = False  # whether its rows interleave our arrays, head by head
    expert: int | None = None  # the expert's number, in arrays that are stacked over layers and experts
    # whether it has all experts, or heads, on an axis in front; our arrays then alternate row by row
    of_experts: bool = False

    @property
    def at(self) -> tuple[int, ...]:
        """The place of the tensor in arrays that are stacked over layers, or over layers and experts."""
        return tuple(i for i in (self.layer, self.expert) if i is not None)

    def of_leaves(self, shapes: Mapping[str, Shape]) -> list[Shape]:
        """Return the shapes of our arrays, in one layer, or one expert of it."""
        return [shapes[leaf][len(self.at) :] for leaf in self.leaves]

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """Return the shape of the tensor."""
        return (*self.lead, *self._oriented(self._stacked(self.of_leaves(shapes))))

    def _stacked(self, leaves: list[Shape]) -> Shape:
        """Return the shape of our arrays stacked by rows."""
        experts, columns = leaves[0][: int(self.of_experts)], self._columns(leaves[0])
        rows = sum(map(math.prod, leaves)) // math.prod(experts + columns)
        return (*experts, rows, *columns)

    def _columns(self, leaf: Shape) -> Shape:
        field = self.leaves[0].rpartition(".")[2]
        is_vector = field.startswith(("b_", "gamma", "beta")) or field == "s"
        return () if is_vector else leaf[-1:]

    def _oriented(self, shape: Shape) -> Shape:
        return (*shape[:-2], *shape[:-3:-1]) if self.transposed else shape

    def _groups(self, leaf: Shape) -> int:
        """Return how many groups of rows follow one another, in each of which our arrays are stacked."""
        interleaved = len(leaf) - len(self._columns(leaf)) if self.of_experts and len(self.leaves) > 1 else self.by_head
        return math.prod(leaf[: int(interleaved)])

    def split(self, tensor: np.ndarray, shapes: Mapping[str, Shape]) -> list[np.ndarray]:
        """Return our arrays, in one layer or expert, from the tensor."""
        leaves = self.of_leaves(shapes)
        array = tensor.reshape(tensor.shape[len(self.lead) :])
        array = array.swapaxes(-1, -2) if self.transposed else array
        groups, columns = self._groups(leaves[0]), self._columns(leaves[0])
        rows = [math.prod(leaf) // math.prod((groups, *columns)) for leaf in leaves]
        parts = np.split(array.reshape(groups, sum(rows), *columns), np.cumsum(rows)[:-1], axis=1)
        return [part.reshape(leaf) for part, leaf in zip(parts, leaves, strict=True)]

    def join(self, parts: Sequence[np.ndarray], shapes: Mapping[str, Shape]) -> np.ndarray:
        """Return the tensor from our arrays."""
        leaves = self.of_leaves(shapes)
        groups, columns = self._groups(leaves[0]), self._columns(leaves[0])
        array = np.concatenate([part.reshape(groups, -1, *columns) for part in parts], axis=1)
        array = array.reshape(self._stacked(leaves))
        array = array.swapaxes(-1, -2) if self.transposed else array
        return np.ascontiguousarray(array).reshape(self.lead + array.shape)


def linear(
    name: str,
    W: str | Sequence[str],
    b: str | Sequence[str],
    layer: int | None = None,
    *,
    transposed: bool = False,
    by_head: bool = False,
) -> list[Entry]:
    """Return the entries of a linear map's weight and bias, each one of our arrays or several, stacked by rows or
    interleaved (`by_head`); `transposed` for a `Conv1D`.
    """
    W, b = ((a,) if isinstance(a, str) else tuple(a) for a in (W, b))
    of_weight = Entry(f"{name}.weight", W, layer, transposed, by_head=by_head)
    return [of_weight, Entry(f"{name}.bias", b, layer, by_head=by_head)]


def norm(name: str, leaf: str, layer: int | None = None) -> list[Entry]:
    """Return the entries of a layer norm."""
    return [Entry(f"{name}.weight", (f"{leaf}.gamma",), layer), Entry(f"{name}.bias", (f"{leaf}.beta",), layer)]


def table(name: str, leaf: str, aliases: Sequence[str] = ()) -> Entry:
    """Return the entry of an embedding table, whose rows are our columns."""
    return Entry(name, (leaf,), transposed=True, aliases=tuple(aliases))


def heads(leaf: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the W_q, W_k and W_v of an attention, and of their biases."""
    return tuple(f"{leaf}.heads.W_{a}" for a in "qkv"), tuple(f"{leaf}.heads.b_{a}" for a in "qkv")


def attention_maps(names: Sequence[str], leaf: str, layer: int) -> list[Entry]:
    """Return the entries of an attention whose queries, keys, values and output are linear maps of these names."""
    *of_heads, output = names
    found = []
    for name, W, b in zip(of_heads, *heads(leaf), strict=True):
        found += linear(name, W, b, layer)
    return found + linear(output, f"{leaf}.W_o", f"{leaf}.b_o", layer)


def mlp_maps(first: str, second: str, leaf: str, layer: int) -> list[Entry]:
    """Return the entries of an MLP of two linear maps of these names."""
    return [
        *linear(first, f"{leaf}.W_mlp1", f"{leaf}.b_mlp1", layer),
        *linear(second, f"{leaf}.W_mlp2", f"{leaf}.b_mlp2", layer),
    ]


def _lookup(tensors: Tensors, entries: Iterable[Entry], prefix: str) -> dict[str, list[str]]:
    """Return the names of each entry's tensor in a file, where the prefix may be missing or added."""
    names, found = set(tensors.names), {}
    for entry in entries:
        candidates = [c for n in (entry.name, *entry.aliases) for c in (n, n.removeprefix(prefix), prefix + n)]
        found[entry.name] = [n for n in dict.fromkeys(candidates) if n in names]
    return found


def read(
    tensors: Tensors,
    entries: Sequence[Entry],
    template: Any,
    *,
    prefix: str = "",
    ignored: Sequence[str] = (),
    dtype: Any = None,
    progress: Callable[[int, int], None] = lambda n, total: None,
) -> dict[str, np.ndarray]:
    """Read our arrays, by their dotted names and with the template's shapes, one tensor at a time. The tensors' names
    may lack the prefix or have it in addition; those that match `ignored` are not parameters. `progress` is called with
    the number of tensors read since the last call, and the total. Raises InterchangeError if tensors are missing,
    unexpected, or of another shape or type.
    """
    entries = [entry for entry in entries if entry.leaves]
    shapes = {name: tuple(leaf.shape) for name, leaf in flatten(template).items()}
    found = _lookup(tensors, entries, prefix)
    _check_names(tensors, entries, shapes, found, ignored)
    leaves: dict[str, np.ndarray] = {}
    for entry in entries:
        name, *copies = found[entry.name]
        array = tensors.read(name)
        if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
            raise InterchangeError(
                f"{tensors.path}: {name} has the type {array.dtype}, expected floating-point numbers"
            )
        for copy in copies:
            if not np.array_equal(tensors.read(copy), array):
                raise InterchangeError(
                    f"{tensors.path}: {copy} and {name} differ, although the model ties them; "
                    "if it does not, set tie_word_embeddings to false in config.json"
                )
        array = array if dtype is None else array.astype(dtype)
        for leaf, part in zip(entry.leaves, entry.split(array, shapes), strict=True):
            _store(leaves, leaf, part, entry.at, shapes[leaf], tensors)
        progress(1, len(entries))
    return leaves


def _store(leaves, leaf: str, part: np.ndarray, at: tuple[int, ...], shape: Shape, tensors: Tensors) -> None:
    if not at:
        leaves[leaf] = np.ascontiguousarray(part)
        return
    if leaf not in leaves:
        leaves[leaf] = np.empty(shape, part.dtype)
    if leaves[leaf].dtype != part.dtype:
        raise InterchangeError(
            f"{tensors.path}: layer {at[0]} has the type {part.dtype}, but the layers before it {leaves[leaf].dtype}"
        )
    leaves[leaf][at] = part


def _check_names(
    tensors: Tensors,
    entries: Sequence[Entry],
    shapes: Mapping[str, Shape],
    found: Mapping[str, list[str]],
    ignored: Sequence[str],
) -> None:
    used = {name for names in found.values() for name in names}
    wrong = {
        "missing": [entry.name for entry in entries if not found[entry.name]],
        "not part of the model that config.json describes": [
            name
            for name in tensors.names
            if name not in used and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored)
        ],
        "of another shape than config.json says": [
            f"{name} {list(tensors.shape(name))} instead of {list(entry.shape(shapes))}"
            for entry in entries
            for name in found[entry.name]
            if tensors.shape(name) != entry.shape(shapes)
        ],
    }
    if any(wrong.values()):
        listed = "; ".join(f"{what}: {_named(names)}" for what, names in wrong.items() if names)
        raise InterchangeError(f"the tensors in {tensors.path} are not those of the model: {listed}")


def _named(names: Sequence[str]) -> str:
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{len(names)}, such as {', '.join(names[:NAMED])}"


def write(entries: Iterable[Entry], leaves: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the checkpoint's tensors with their names, each made on request from our arrays by their dotted names."""
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves.items()}
    for entry in entries:
        if not entry.leaves:
            yield entry.name, np.zeros(entry.lead, next(iter(leaves.values())).dtype)
            continue
        yield entry.name, entry.join([np.asarray(leaves[leaf][entry.at]) for leaf in entry.leaves], shapes)
