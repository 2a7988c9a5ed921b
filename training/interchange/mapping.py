"""How the tensors of a checkpoint lie in our parameters: a list that is read in both directions.

A tensor of a checkpoint is one of our arrays, or the slice of a layer of it, or several of them, one above another in
its rows. All else is the orientation: `nn.Linear` has [d_out, d_in], as we do, with the heads one above another in its
rows; an embedding table, and GPT-2's `Conv1D`, are transposed.
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
"""How many of the tensors that are wrong are named."""


class Entry(NamedTuple):
    """A tensor of a checkpoint."""

    name: str  # the checkpoint's
    # our arrays, by their dotted names, one above another; none for zeros of the shape `lead`, which a model that lacks
    # them is written with
    leaves: tuple[str, ...]
    layer: int | None = None  # the layer's number; None for arrays that are not stacked
    transposed: bool = False  # whether its rows are our columns
    lead: Shape = ()  # axes of size 1 in front of it
    aliases: tuple[str, ...] = ()  # names under which a checkpoint may have it too, or instead

    def of_leaf(self, shapes: Mapping[str, Shape]) -> Shape:
        """Return the shape of one of our arrays, of the layer."""
        shape = shapes[self.leaves[0]]
        return shape if self.layer is None else shape[1:]

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """Return the shape that the tensor has."""
        leaf = self.of_leaf(shapes)
        if _is_vector(self.leaves[0]):
            return (*self.lead, len(self.leaves) * math.prod(leaf))
        rows, columns = len(self.leaves) * math.prod(leaf[:-1]), leaf[-1]
        return (*self.lead, columns, rows) if self.transposed else (*self.lead, rows, columns)


def _is_vector(leaf: str) -> bool:
    field = leaf.rpartition(".")[2]
    return field.startswith(("b_", "gamma", "beta"))


def linear(
    name: str, W: str | Sequence[str], b: str | Sequence[str], layer: int | None = None, *, transposed: bool = False
) -> list[Entry]:
    """Return the entries of a linear map's weight and bias, each one of our arrays, or several one above another;
    `transposed` for a `Conv1D`.
    """
    W, b = ((a,) if isinstance(a, str) else tuple(a) for a in (W, b))
    return [Entry(f"{name}.weight", W, layer, transposed), Entry(f"{name}.bias", b, layer)]


def norm(name: str, leaf: str, layer: int | None = None) -> list[Entry]:
    """Return the entries of a layer norm."""
    return [Entry(f"{name}.weight", (f"{leaf}.gamma",), layer), Entry(f"{name}.bias", (f"{leaf}.beta",), layer)]


def table(name: str, leaf: str, aliases: Sequence[str] = ()) -> Entry:
    """Return the entry of an embedding table, whose rows are our columns."""
    return Entry(name, (leaf,), transposed=True, aliases=tuple(aliases))


def heads(leaf: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of W_q, W_k, W_v and of their biases, of an attention."""
    return tuple(f"{leaf}.heads.W_{a}" for a in "qkv"), tuple(f"{leaf}.heads.b_{a}" for a in "qkv")


class _Lookup:
    """Where each entry is in a file, whose names may lack a prefix or have one too many."""

    def __init__(self, tensors: Tensors, entries: Iterable[Entry], prefix: str) -> None:
        names = set(tensors.names)
        self.found: dict[str, list[str]] = {}
        for entry in entries:
            candidates = [c for n in (entry.name, *entry.aliases) for c in (n, n.removeprefix(prefix), prefix + n)]
            self.found[entry.name] = [n for n in dict.fromkeys(candidates) if n in names]
        self.used = {name for found in self.found.values() for name in found}


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
    """Read our arrays, shaped as the template's and by their dotted names, one tensor at a time. Names may have or lack
    the prefix; those that match `ignored` are not parameters. `progress` is called with how many tensors were read
    since, and how many there are. Raises InterchangeError if tensors are missing, unexpected, or of another shape.
    """
    entries = [entry for entry in entries if entry.leaves]
    shapes = {name: tuple(leaf.shape) for name, leaf in flatten(template).items()}
    lookup = _Lookup(tensors, entries, prefix)
    _check_names(tensors, entries, shapes, lookup, ignored)
    leaves: dict[str, np.ndarray] = {}
    for entry in entries:
        name, *copies = lookup.found[entry.name]
        array = tensors.read(name)
        if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
            raise InterchangeError(
                f"{tensors.path}: {name} has the type {array.dtype}, expected floating-point numbers"
            )
        for copy in copies:
            if not np.array_equal(tensors.read(copy), array):
                raise InterchangeError(
                    f"{tensors.path}: {copy} and {name} differ, although the model ties them; "
                    "if it does not, config.json must say so (tie_word_embeddings)"
                )
        shape = entry.of_leaf(shapes)
        array = array if dtype is None else array.astype(dtype)
        array = array.reshape(array.shape[len(entry.lead) :])
        parts = (array.T if entry.transposed else array).reshape(len(entry.leaves), *shape)
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
    tensors: Tensors, entries: Sequence[Entry], shapes: Mapping[str, Shape], lookup: _Lookup, ignored: Sequence[str]
) -> None:
    wrong = {
        "missing": [entry.name for entry in entries if not lookup.found[entry.name]],
        "not part of the model that config.json describes": [
            name
            for name in tensors.names
            if name not in lookup.used and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored)
        ],
        "of another shape than config.json says": [
            f"{name} {list(tensors.shape(name))} instead of {list(entry.shape(shapes))}"
            for entry in entries
            for name in lookup.found[entry.name]
            if tensors.shape(name) != entry.shape(shapes)
        ],
    }
    if any(wrong.values()):
        found = "; ".join(f"{what}: {_named(names)}" for what, names in wrong.items() if names)
        raise InterchangeError(f"the tensors in {tensors.path} are not those of the model: {found}")


def _named(names: Sequence[str]) -> str:
    """Return all names, or of many how many there are, and the first."""
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{len(names)}, such as {', '.join(names[:NAMED])}"


def write(entries: Iterable[Entry], leaves: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the checkpoint's tensors by name, made one at a time of our arrays, by their dotted names."""
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves.items()}
    for entry in entries:
        if not entry.leaves:
            yield entry.name, np.zeros(entry.lead, next(iter(leaves.values())).dtype)
            continue
        parts = [leaves[leaf] if entry.layer is None else leaves[leaf][entry.layer] for leaf in entry.leaves]
        shape = entry.shape(shapes)[len(entry.lead) :]
        if len(shape) == 1:
            array = np.concatenate([np.asarray(part).reshape(-1) for part in parts])
        else:
            array = np.concatenate([np.asarray(part).reshape(-1, part.shape[-1]) for part in parts])
        yield entry.name, np.ascontiguousarray(array.T if entry.transposed else array).reshape(entry.lead + shape)
