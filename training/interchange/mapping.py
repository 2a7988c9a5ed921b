"""Correspondence of a checkpoint's tensors and our parameters: one list of entries for both reading and writing.

A tensor of a checkpoint is one of our arrays, one layer or expert of it, or several of them stacked by rows. Only the
orientation differs: `nn.Linear` stores [d_out, d_in] as we do, with the heads stacked by rows; an embedding table,
GPT-2's `Conv1D` and GPT-OSS's experts are transposed.
"""

import fnmatch
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from training.interchange.containers import Tensors
from training.interchange.errors import InterchangeError
from training.runs.named_arrays import flatten

Shape = tuple[int, ...]
NAMED = 3
"""Maximum number of wrong tensors that an error names."""


class Entry(NamedTuple):
    """A tensor of a checkpoint."""

    name: str  # the checkpoint's
    # the dotted names of our arrays, stacked by rows; none if our model has no such tensor, which then has this `value`
    # everywhere, and the shape `constant`
    leaves: tuple[str, ...]
    layer: int | None = None  # the layer's row in our arrays; None for those that are not stacked over layers
    transposed: bool = False  # whether its rows are our columns
    ones: tuple[int, ...] = ()  # its axes of size 1, which our arrays do not have
    beside: str = ""  # the name of our array that a layer with this tensor has, too; "": any
    unless: str = ""  # the name of our array that a layer with this tensor has not
    aliases: tuple[str, ...] = ()  # other names, which a checkpoint may have in addition or instead
    copies: tuple[str, ...] = ()  # other names under which a checkpoint has the same tensor again
    heads: str = ""  # the name of our array with as many heads as interleave in its rows, if any do
    expert: int | None = None  # the expert's number, in arrays that are stacked over layers and experts
    # whether it has all experts, or heads, on an axis in front; our arrays then alternate row by row
    of_experts: bool = False
    value: float = 0.0
    constant: Shape = ()

    @property
    def at(self) -> tuple[int, ...]:
        """The place of the tensor in arrays that are stacked over layers, or over layers and experts."""
        return tuple(i for i in (self.layer, self.expert) if i is not None)

    def of_leaves(self, shapes: Mapping[str, Shape]) -> list[Shape]:
        """Return the shapes of our arrays, in one layer, or one expert of it."""
        return [shapes[leaf][len(self.at) :] for leaf in self.leaves]

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """Return the shape of the tensor."""
        if not self.leaves:
            return self.constant
        *_, stacked = self._stacked(shapes)
        turned = (*stacked[:-2], *stacked[:-3:-1]) if self.transposed else stacked
        return np.expand_dims(np.broadcast_to(0, turned), self.ones).shape

    def _stacked(self, shapes: Mapping[str, Shape]) -> tuple[int, list[int], Shape, Shape]:
        """Return how many groups of rows follow one another, in each of which our arrays are stacked; the rows of each
        array there; the shape of a row; and that of the whole, before it is transposed.
        """
        leaves, field = self.of_leaves(shapes), self.leaves[0].rpartition(".")[2]
        row = () if field.startswith(("b_", "gamma", "beta", "alpha")) or field in ("s", "a", "D") else leaves[0][-1:]
        interleaved = leaves[0][: len(leaves[0]) - len(row)] if self.of_experts and len(leaves) > 1 else ()
        interleaved = shapes[self.heads][len(self.at) :][:1] if self.heads else interleaved
        groups, experts = math.prod(interleaved), leaves[0][: int(self.of_experts)]
        rows = [math.prod(leaf) // math.prod((groups, *row)) for leaf in leaves]
        return groups, rows, row, (*experts, groups * sum(rows) // math.prod(experts), *row)

    def split(self, tensor: np.ndarray, shapes: Mapping[str, Shape]) -> list[np.ndarray]:
        """Return our arrays, in one layer or expert, from the tensor."""
        groups, rows, row, _ = self._stacked(shapes)
        array = tensor.squeeze(self.ones)
        array = array.swapaxes(-1, -2) if self.transposed else array
        parts = np.split(array.reshape(groups, sum(rows), *row), np.cumsum(rows)[:-1], axis=1)
        return [part.reshape(leaf) for part, leaf in zip(parts, self.of_leaves(shapes), strict=True)]

    def join(self, parts: Sequence[np.ndarray], shapes: Mapping[str, Shape]) -> np.ndarray:
        """Return the tensor from our arrays."""
        groups, _, row, stacked = self._stacked(shapes)
        array = np.concatenate([part.reshape(groups, -1, *row) for part in parts], axis=1).reshape(stacked)
        array = array.swapaxes(-1, -2) if self.transposed else array
        return np.ascontiguousarray(np.expand_dims(array, self.ones))


ONES = {"[": (0,), "<": (-2,), "{": (0, 1, -1)}
"""The axes of size 1 of a tensor whose row in a `Table` begins with these."""
TABLES = ("W_e", "W_p", "W_t", "encoder_distances", "decoder_distances")
"""Our tables, whose columns are rows of a checkpoint's."""
Table = Mapping[str, str | Shape | float]
HEADS, HIDDEN = "heads.*_q heads.*_k heads.*_v *_o", "*_mlp1 *_mlp2"
"""The linear maps of an attention and of an MLP, as in a `Table`."""


def each(pattern: str, words: str) -> str:
    """Return a pattern with each of several words in it; words are separated by spaces."""
    return " ".join(map(pattern.format, words.split()))


def rows(theirs: str, names: str, ours: str, leaves: str) -> dict[str, str]:
    """Return the rows of modules for `entries_of`: their names and ours, each separated by spaces, after prefixes."""
    modules = [name if name.endswith("*") else f"{name}.*" for name in names.split()]
    return {f"{theirs}.{name}": f"{ours}.{leaf}" for name, leaf in zip(modules, leaves.split(), strict=True)}


Places = Sequence[tuple[int, int]]
"""The number of each layer's stack in our parameters, if there are several, and its row there."""

_STACK = re.compile(r"^(layers|encoder|decoder)\.\d+\.")


def entries_of(table: Table, shapes: Mapping[str, Shape], *, conv1d: bool = False, places: Places = ()) -> list[Entry]:
    """Return the tensors in a table that a model has, and for each of them our arrays.

    In a name, ``#`` is the number of a layer, ``#+`` of its MLP if MLPs are counted as layers, and ``@`` that of an
    expert; ``*`` is weight or bias, in ours W or b, or
    gamma or beta; the first of alternatives, separated by ``|``, is written. Ours are stacked by ``+`` and interleaved
    head by head by ``&``, in ``A&B/C`` by the heads of C; in ``[`` and ``]`` they have an axis of size 1 in front, and
    in ``<`` and ``>`` before the last, in ``{`` and ``}`` two in front and one behind; in ``A/A`` and after ``^`` the
    heads have an axis in front, and after ``^`` matrices are transposed. After ``:`` comes an array that a layer with
    this tensor has, too, after ``!`` one that it has not. A tied W_u is another name of W_e. Instead of ours, a table
    may have the shape of zeros, or the number that a tensor always has. With `conv1d`, the layers' matrices are
    transposed.
    """
    known = [entry for names, ours in table.items() for entry in _in_row(names, ours, conv1d=conv1d)]
    names = {_STACK.sub(r"\1.", name) for name in shapes}
    has = [entry for entry in known if not entry.leaves or entry.leaves[0] in names]
    if "W_u" not in shapes:
        tied = [name for entry in known if entry.leaves == ("W_u",) for name in (entry.name, *entry.aliases)]
        has = [entry._replace(aliases=(*entry.aliases, *tied)) if entry.leaves == ("W_e",) else entry for entry in has]
    found: list[Entry] = []
    for prefix, group in itertools.groupby(has, lambda entry: "#" in entry.name and entry.name.partition("#")[0]):
        entries = list(group)
        rows = [shapes[leaf][0] for entry in entries for leaf in entry.leaves[:1] if leaf in shapes] if prefix else []
        of_layers = [(None, l) for l in range(max(rows))] if rows else places if prefix else ()
        number = 0
        for at in of_layers:
            of_layer = [(entry.name, _in_layer(entry, number, at, shapes)) for entry in entries]
            found += [one for _, ones in of_layer for one in ones]
            number += 1 + any(ones and "#+" in name for name, ones in of_layer)
        found += [] if prefix else entries
    return found


def _in_row(names: str, ours: str | Shape | float, *, conv1d: bool) -> list[Entry]:
    """Return the tensors of a row of a table, a weight and a bias if there is a ``*``."""
    if not isinstance(ours, str):
        return [Entry(names, (), constant=ours) if isinstance(ours, tuple) else Entry(names, (), value=ours)]
    found = []
    for field, letter, of_norm in (("weight", "W", "gamma"), ("bias", "b", "beta"))[: 1 + ("*" in names)]:
        name, *aliases = names.replace("*", field).split("|")
        named, _, unless = ours.strip("[]<>{}^").partition("!")
        named, _, beside = named.partition(":")
        named = named.replace("*_", f"{letter}_").replace("*", of_norm).replace("&", "+")
        joined, _, heads = named.partition("/")
        first, *others = joined.split("+")
        scope, dot, leaf = first.rpartition(".")
        heads = f"{scope}{dot}{heads}" if heads else first if "&" in ours else ""
        of_experts = ours[0] == "^" or (".experts" in scope and "@" not in name) or (heads == first and "&" not in ours)
        is_table = leaf in TABLES
        turned = of_experts and (ours.startswith("^") or not heads)
        transposed = is_table or (leaf.startswith("W_") and (turned or (conv1d and bool(scope))))
        others = [other if "." in other else f"{scope}{dot}{other}" for other in others]
        entry = Entry(name, (first, *others), None, transposed, heads=heads)
        beside, unless = (name and f"{scope}{dot}{name}" for name in (beside, unless))
        more = {"of_experts": of_experts, "beside": beside, "unless": unless, "ones": ONES.get(ours[0], ())}
        found.append(entry._replace(aliases=tuple(aliases), **more))
    return found


def _in_layer(entry: Entry, number: int, at: tuple[int | None, int], shapes: Mapping[str, Shape]) -> list[Entry]:
    """Return the tensors of a layer, of a row of a stack that may lack this array."""
    stack, l = at
    if not entry.leaves:
        return [entry._replace(name=entry.name.replace("#", str(number)))]
    if stack is not None:
        *leaves, heads, beside, unless = (
            leaf.replace(".", f".{stack}.", 1) for leaf in (*entry.leaves, entry.heads, entry.beside, entry.unless)
        )
        entry = entry._replace(leaves=tuple(leaves), heads=heads, beside=beside, unless=unless)
    shape = shapes.get(entry.leaves[0])
    if shape is None or (entry.beside and entry.beside not in shapes) or entry.unless in shapes:
        return []
    names = [name.replace("#+", str(number + 1)).replace("#", str(number)) for name in (entry.name, *entry.aliases)]
    found = []
    for expert in range(shape[1]) if "@" in entry.name else (None,):
        name, *aliases = (name.replace("@", str(expert)) for name in names)
        found.append(entry._replace(name=name, aliases=tuple(aliases), layer=l, expert=expert))
    return found


def lookup(tensors: Tensors, entries: Iterable[Entry], prefix: str) -> dict[str, list[str]]:
    """Return the names of each entry's tensor in a file, where the prefix may be missing or added."""
    names, found = set(tensors.names), {}
    for entry in entries:
        candidates = [
            c for n in (entry.name, *entry.aliases, *entry.copies) for c in (n, n.removeprefix(prefix), prefix + n)
        ]
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
    shapes = {name: tuple(leaf.shape) for name, leaf in flatten(template).items()}
    found = lookup(tensors, entries, prefix)
    for name, value in ((name, entry.value) for entry in entries if not entry.leaves for name in found[entry.name]):
        if not np.allclose(tensors.read(name).astype(float), value, rtol=2**-8, atol=0):  # as rounded to bfloat16
            raise InterchangeError(f"{tensors.path}: {name}: expected {value:g}, got another number")
    entries = [entry for entry in entries if entry.leaves]
    _check_names(tensors, entries, shapes, found, ignored)
    leaves: dict[str, np.ndarray] = {}
    for entry in entries:
        name, *copies = found[entry.name]
        array = tensors.read(name)
        is_blocks = array.dtype.names is not None  # which `gguf_blocks` keeps as they are
        if not (is_blocks or np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"):
            raise InterchangeError(
                f"{tensors.path}: {name} has the type {array.dtype}, expected floating-point numbers"
            )
        for copy in copies:
            if not np.array_equal(tensors.read(copy), array):
                raise InterchangeError(
                    f"{tensors.path}: {copy} and {name} differ, although the model ties them; "
                    "if it does not, set tie_word_embeddings to false in config.json"
                )
        array = array if dtype is None or is_blocks else array.astype(dtype)
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
            yield entry.name, np.full(entry.constant, entry.value, next(iter(leaves.values())).dtype)
            continue
        for name in (entry.name, *entry.copies):
            yield name, entry.join([np.asarray(leaves[leaf][entry.at]) for leaf in entry.leaves], shapes)
