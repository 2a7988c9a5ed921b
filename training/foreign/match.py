"""Recognizing a line's value among foreign tensors by its numbers alone, in any layout.

Every value of the paper has a token axis. A foreign tensor in any layout holds, along one of its axes, the same rows of
ℓ numbers, in some order, perhaps among others (fused products, padded heads, batches). So a value is found if each of
its rows is within the tolerance of a row of one and the same tensor; which rows these are says what the layout is. A row
of ℓ random numbers is as good as a fingerprint: with ℓ = 7, numbers spread over ±2 and a tolerance of 0.02, the chance
that another row is as near is about 1e-14. Rows that are the same for all tokens are no evidence.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from .run import LARGE, real

__all__ = ["MARGIN", "Finder", "Group", "Match", "Observed", "layout"]

MARGIN = 2.0  # tolerance of a value, as a multiple of its replicas' spread

FLOOR = 4e-16
FIRST = 4  # number of rows looked up in the tree before all are compared: in a narrow dtype, many are near the first
LEAST = 8  # so many numbers of one token are evidence
LONGEST = 4  # an axis with up to this many times ℓ numbers may begin with those of the tokens (a cache, padding)


@dataclasses.dataclass
class Observed:
    """A foreign tensor."""

    operation: str  # what computed it
    value: np.ndarray
    time: int  # how many there were before
    source: tuple[str, int] | None = None  # file and line

    @property
    def name(self) -> str:
        """The operation and where it is."""
        if self.source is None:
            return self.operation
        return f"{self.operation} ({pathlib.Path(self.source[0]).name}:{self.source[1]})"


@dataclasses.dataclass(eq=False)
class Group:
    """The rows of a tensor along one of its axes, [rows, ℓ]."""

    tensor: Observed
    axis: int  # -1, -2: of a flat one
    rows: np.ndarray  # those of masked scores cut at LARGE
    exact: np.ndarray
    is_whole: bool = True

    def values(self, is_masked: bool) -> np.ndarray:
        """The numbers; of masked scores, a large negative one is −∞."""
        return np.where(self.exact <= LARGE, -np.inf, self.exact) if is_masked else self.exact


@dataclasses.dataclass
class Match:
    """The place at which a value was found."""

    groups: list[Group]  # of each part (head)
    rows: list[np.ndarray]  # of each part, the numbers of its rows there
    worst: float  # the largest difference
    values: Any  # the foreign values as the paper has them
    tolerance: float

    @property
    def tensors(self) -> list[Observed]:
        """The tensor of each part."""
        return [group.tensor for group in self.groups]

    @property
    def raw(self) -> list[bytes]:
        """The rows, by which a tensor counts once only."""
        return [group.rows[i].tobytes() for group, rows in zip(self.groups, self.rows, strict=True) for i in rows]


class Finder:
    """All rows of all foreign tensors, by their length.

    `lengths`: numbers of tokens, each with the number of those that are not padding; only these are compared.
    """

    def __init__(self, observed: Sequence[Observed], lengths: Mapping[int, int]) -> None:
        self.lengths = lengths
        self.groups: dict[int, list[Group]] = {l: [] for l in lengths}
        self.single: dict[int, list[Observed]] = {}  # what has no axis of tokens, by its size
        self.trees: dict[int, tuple[KDTree, np.ndarray]] = {}
        self.sums: dict[int, np.ndarray] = {}  # of each row, sorted
        seen = set()
        for tensor in observed:
            visit = (tensor.value.shape, tensor.value.tobytes())
            if visit in seen or tensor.value.size == 0:
                continue
            seen.add(visit)
            if not set(lengths) & set(tensor.value.shape):
                self.single.setdefault(tensor.value.size, []).append(tensor)
            for l, n in lengths.items():
                self.groups[l] += _groups(tensor, l, n)
        for l, groups in self.groups.items():
            if groups:
                number = np.repeat(np.arange(len(groups)), [len(group.rows) for group in groups])
                rows = np.concatenate([group.rows for group in groups])[:, : lengths[l]]
                self.trees[l], self.sums[l] = (KDTree(rows), number), np.sort(rows.sum(-1))

    def find(self, value: Any, tolerance: float, rough: float = 0.0, is_masked: bool = False) -> Match | None:
        """Place of a value [parts, rows, tokens], or None.

        `rough`: within this share of its largest number; `is_masked`: whether LARGE stands for −∞ in it.
        """
        if np.iscomplexobj(value):
            return None
        shown = np.abs(real(value, self.lengths))
        largest = (shown[shown < -LARGE] if is_masked else shown).max(initial=0.0 if rough else 1.0)
        radius = MARGIN * tolerance + max(FLOOR, rough) * float(largest)
        found = [self._find(value, radius, is_masked)]
        if value.shape[-2] > 1 and value.shape[-2] in self.trees:
            other = self._find(np.swapaxes(value, -1, -2), radius, is_masked)
            if other is not None:
                other.values = np.swapaxes(other.values, -1, -2)
            found.append(other)
        best = min((match for match in found if match is not None), key=lambda match: match.worst, default=None)
        if best is not None and not rough and np.mean(np.ptp(real(value, self.lengths), axis=-1) <= 2 * radius) > 0.5:
            return None  # the same for every token
        return best

    def find_last(self, value: Any, tolerance: float) -> Match | None:
        """Place of the last column of a value [1, rows, tokens]: code that generates may compute nothing else."""
        last = max(n for l, n in self.lengths.items() if l == value.shape[-1]) - 1
        column, radius = value[0, :, last], MARGIN * tolerance + FLOOR * float(np.abs(value).max(initial=1.0))
        for tensor in self.single.get(len(column), ()) if len(column) >= LEAST else ():
            if np.abs(tensor.value.reshape(-1) - column).max() <= radius:
                theirs = value.copy()
                theirs[0, :, last] = tensor.value.reshape(-1)
                group = Group(tensor, -1, tensor.value.reshape(-1, 1), tensor.value.reshape(-1, 1))
                return Match([group], [np.arange(len(column))], 0.0, theirs, radius)
        return None

    def _find(self, A: Any, radius: float, is_masked: bool) -> Match | None:
        if A.shape[-1] not in self.trees:
            return None
        n, parts = self.lengths[A.shape[-1]], real(A, self.lengths)
        if not self._may_have(parts, A.shape[-1], radius):
            return None
        groups, rows, values, worst = [], [], [], 0.0
        for whole, part in zip(A, parts, strict=True):
            best = None
            for group in self._near(part, A.shape[-1], radius) if np.isfinite(part).all() else ():
                if len(group.rows) < len(part):
                    continue
                theirs = (group.rows if is_masked else group.exact)[:, :n]
                apart = np.abs(part[:, None, :] - theirs[None]).max(-1)
                nearest = apart.argmin(1)
                largest = apart[np.arange(len(part)), nearest].max()
                if largest <= radius and (best is None or (largest, len(group.rows)) < best[0]):
                    best = ((largest, len(group.rows)), group, nearest)
            if best is None:
                return None
            (largest, _), group, nearest = best
            groups.append(group)
            rows.append(nearest)
            padding = whole[len(part) :]
            padding = np.where(padding <= LARGE, -np.inf, padding) if is_masked else padding
            values.append(np.concatenate([group.values(is_masked)[nearest], padding]))
            worst = max(worst, largest)
        return Match(groups, rows, worst, np.stack(values), radius)

    def _may_have(self, parts: Any, l: int, radius: float) -> bool:
        """Whether each row has the sum of some foreign row, within what a row within the radius may have."""
        sums = np.maximum(parts, LARGE).sum(-1)  # theirs are of rows that are cut, too
        by = l * (radius + 1e-14 * float(np.abs(sums).max(initial=1.0)))
        return bool((self.sums[l].searchsorted(sums - by) < self.sums[l].searchsorted(sums + by)).all())

    def _near(self, part: Any, l: int, radius: float) -> Iterator[Group]:
        """The groups that have the first rows of a part."""
        (tree, number), found = self.trees[l], None
        for row in np.maximum(part[:FIRST], LARGE):
            near = set(number[tree.query_ball_point(row, radius, p=np.inf)].tolist())
            found = near if found is None else found & near
            if not found:
                return
        yield from (self.groups[l][g] for g in sorted(found or ()))


def _groups(tensor: Observed, l: int, n: int) -> Iterator[Group]:
    """The parts of a tensor that may be rows over l tokens; only the first n tokens are not padding."""
    a = tensor.value

    def group(axis: int, rows: np.ndarray, is_whole: bool = True) -> Group:
        rows = np.concatenate([rows[:, :n], np.nan_to_num(rows[:, n:])], axis=1)
        cut = np.where(rows <= LARGE, LARGE, rows)
        finite = np.isfinite(cut).all(axis=1, keepdims=True)
        return Group(tensor, axis, np.where(finite, cut, 1e30), np.where(finite, rows, 1e30), is_whole)

    for axis, size in enumerate(a.shape):
        if size == l:
            yield group(axis, np.moveaxis(a, axis, -1).reshape(-1, l))
        elif l < size <= LONGEST * l and a.ndim <= 4:
            yield group(axis, np.moveaxis(a, axis, -1)[..., :l].reshape(-1, l), False)
    if l not in a.shape and a.size % l == 0 and a.ndim <= 2 and a.size > l:  # flat, or batch and tokens merged
        yield group(-1, a.reshape(-1, l), False)
        if a.ndim == 1:
            yield group(-2, a.reshape(l, -1).T, False)


def layout(match: Match) -> str:
    """The tensors and the layout of a found value, in words."""
    group = match.groups[0]
    shape, axis = group.tensor.value.shape, group.axis
    sizes = ", ".join("ℓ" if i == axis else str(n) for i, n in enumerate(shape))
    text = f"{group.tensor.name} [{sizes}]{' flat' if axis < 0 else ''}"
    if len({tensor.time for tensor in match.tensors}) > 1:
        return f"{text}, {len(match.tensors)} tensors"
    flat = np.concatenate(match.rows)
    step = np.diff(flat)
    if len(flat) < len(group.rows):
        if len(flat) == 1 or (step == 1).all():
            return f"{text}, rows {flat[0]}–{flat[-1]}"
        order = " in order" if (step > 0).all() else ", in another order"
        return f"{text}, {len(flat)} of {len(group.rows)} rows{order}"
    return f"{text}, rows in another order" if (step < 0).any() else text
