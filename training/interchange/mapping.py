"""How the tensors of a checkpoint correspond to our parameters: one list of entries for both reading and writing.

A tensor of a checkpoint is one of our arrays, one layer of it, or several of them stacked by rows. Only the orientation
differs: `nn.Linear` stores [d_out, d_in] as we do, with the heads stacked by rows; an embedding table and GPT-2's
`Conv1D` are transposed.
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

    def of_leaf(self, shapes: Mapping[str, Shape]) -> Shape:
        """Return the shape of one of our arrays, in one layer."""
        shape = shapes[self.leaves[0]]
        return shape if self.layer is None else shape[1:]

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """Return the shape of the tensor."""
        leaf = self.of_leaf(shapes)
        if _is_vector(self.leaves[0]):
            return (*self.lead, len(self.leaves) * math.prod(leaf))
        rows, columns = len(self.leaves) * math.prod(leaf[:-1]), leaf[-1]
        return (*self.lead, columns, rows) if self.transposed else (*self.lead, rows, columns)


def _is_vector(leaf: str) -> bool:
    field = leaf.rpartition(".")[2]
    return field.startswith(("b_", "gamma", "beta"))


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
        shape = entry.of_leaf(shapes)
        array = array if dtype is None else array.astype(dtype)
        array = array.reshape(array.shape[len(entry.lead) :])
        array = array.T if entry.transposed else array
        if entry.by_head:
            parts = array.reshape(shape[0], len(entry.leaves), *shape[1:]).swapaxes(0, 1)
        else:
            parts = array.reshape(len(entry.leaves), *shape)
        for leaf, part in zip(entry.leaves, parts, strict=True):
            _store(leaves, leaf, part, entry.layer, shapes[leaf], tensors)
        progress(1, len(entries))
    return leaves


def _store(leaves, leaf: str, part: np.ndarray, layer: int | None, shape: Shape, tensors: Tensors) -> None:
    if layer is None:
        leaves[leaf] = np.ascontiguousarray(part)
        return
    if leaf not in leaves:
        leaves[leaf] = np.empty(shape, part.dtype)
    if leaves[leaf].dtype != part.dtype:
        raise InterchangeError(
            f"{tensors.path}: layer {layer} has the type {part.dtype}, but the layers before it {leaves[leaf].dtype}"
        )
    leaves[leaf][layer] = part


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
        parts = [leaves[leaf] if entry.layer is None else leaves[leaf][entry.layer] for leaf in entry.leaves]
        shape = entry.shape(shapes)[len(entry.lead) :]
        array = np.stack([np.asarray(part) for part in parts], axis=int(entry.by_head))
        array = array.reshape(shape[::-1]).T if entry.transposed else array.reshape(shape)
        yield entry.name, np.ascontiguousarray(array).reshape(entry.lead + shape)
