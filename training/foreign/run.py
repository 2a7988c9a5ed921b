"""A run of the reference: choices at the places of its formulas, bounds of rounding, and values taken from foreign code.

Every line is a thunk. Where foreign code was seen to hold the line's value, the run goes on with the foreign value (it is
"pinned"), so that each line is judged by itself and errors do not add up over layers. Arrays are [R, ..., rows, tokens]:
replica 0 is exact, the others carry random relative errors of the foreign dtype (Monte Carlo arithmetic), and their
spread is the tolerance of a line. In complex arithmetic the replicas are complex steps, which give gradients.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .catalogue import choice, paper

__all__ = ["LARGE", "LAST", "TABLES", "Choices", "Key", "Named", "Run", "Seen", "chosen", "kind_of", "real", "scopes"]

LARGE = -1000.0  # scores below it count as −∞
LAST = "only the last token's"  # the form of a value of which code that generates computes one column

Choices = Mapping[str, str]
"""Scope → name of a choice; the scope is a slot, "slot@l1/6" (at one place) or "slot@l*/6" (there in every layer)."""

Thunk = Callable[[], Any]
Forms = Sequence[tuple[str, Any, Any]]  # of a value: a name, the form, and its inverse

REPLICAS = 5

SPREADS = 3.0
"""Maximum of the mean difference of a line's numbers, each as a multiple of its replicas' spread. Rounding is half as wide
as the noise of replicas, and gives ½, or twice that with sixteen roundings where a replica has one.
"""

TABLES = 2.0**-23
"""The error of float32, in which tables of sines and cosines are often made, and softmax is often computed."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A value of a line in one visit."""

    place: str  # the line that is being executed, such as "l1/6": line 6 in layer 1
    algorithm: int
    line: str
    what: str = ""  # which of the line's values, where it has several

    @functools.cached_property
    def kind(self) -> str:
        """The same in every layer: "l*/6:4.1"."""
        return f"{kind_of(self.place)}{self.id[len(self.place) :]}"

    @functools.cached_property
    def id(self) -> str:
        """Such as "l1/6:4.1": line 1 of Algorithm 4 in line 6 in layer 1."""
        return f"{self.place}:{self.algorithm}.{self.line}" + (f" {self.what}" if self.what else "")


class Named(NamedTuple):
    """A value, and the line that it is of."""

    value: Any
    key: Key


@dataclasses.dataclass
class Seen:
    """The outcome of a line in a run."""

    key: Key
    value: Any  # [R, ...]
    tolerance: float
    match: Any  # where the foreign code has it, or None
    form: str  # in which form, such as "√v" for v
    inputs: list[str]  # the ids of the lines that it is computed from
    parts: bool  # whether heads are in front
    apart: float = 0.0  # see `_apart`
    read: Any = None  # what the lines behind read: the foreign value, with errors, if there is one


@functools.cache
def kind_of(place: str) -> str:
    """A place in every layer: "l1/6" → "l*/6"."""
    return re.sub(r"^(l|enc|dec)\d+", r"\1*", place)


def real(A: Any, lengths: Mapping[int, int]) -> Any:
    """The tokens of A [..., rows, tokens] that are no padding; of scores, such rows, too; `lengths`: see `Finder`."""
    rows, columns = (lengths.get(l, l) for l in A.shape[-2:])
    return A[..., :rows, :columns]


def scopes(slot: str, place: str) -> tuple[str, str, str]:
    """The scopes that speak of a slot at a place, the narrowest first."""
    return f"{slot}@{place}", f"{slot}@{kind_of(place)}", slot


def chosen(choices: Choices, slot: str, place: str) -> str | None:
    """The name that is chosen for a place, or for it in every layer, or everywhere."""
    return next((choices[scope] for scope in scopes(slot, place) if scope in choices), None)


class StopRun(Exception):  # noqa: N818
    """The run has seen enough."""


@dataclasses.dataclass
class Run:
    """The arithmetic and the lines of a run."""

    case: Any  # what is run
    choices: Choices = dataclasses.field(default_factory=dict)  # what stands in place of its base
    _: dataclasses.KW_ONLY
    finder: Any = None  # of the foreign tensors
    epsilon: float = 0.0  # of the foreign dtype
    rough: float = 0.0  # without replicas: a line is found within this share of its largest number, and is not pinned
    pins: Mapping[str, Seen] = dataclasses.field(default_factory=dict)  # values of lines to go on from
    theta: Any = None  # arrays [R, ...] by name, in place of the case's
    extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # foreign biases by name
    budget: int | None = None  # how many lines in a row may be missed
    loose: Collection[str] = ()  # kinds of lines that the foreign code computes in float32
    detached: Collection[str] = ()  # kinds of lines that no gradient passes
    backward: Choices = dataclasses.field(default_factory=dict)  # choices of the gradient alone
    like: "Run | None" = None  # a run whose lines are taken over, until one depends on what is new
    new: Collection[tuple[str, str]] = ()  # slots and places where its choices are others; a parameter as ("θ", name)
    goal: str = ""  # a line that must be found: where it is not, the run ends

    def __post_init__(self) -> None:
        self.choices = dict(self.choices)
        self.turns = any(scope.partition("@")[0] == "turns" for scope in self.choices)
        self.rng = np.random.default_rng(0)
        self.R = REPLICAS + 1 if self.epsilon else 1
        self.lines: dict[str, Seen] = {}
        self.uses: dict[str, list[tuple[str, str]]] = {}
        self.keys: dict[str, Key] = {}  # of what uses something, which perhaps is no line
        # slot and place → the name of the choice there, and how many lines there were before it was asked for
        self.asked: dict[tuple[str, str], tuple[str, int]] = {}
        self.key: Key | None = None
        self.outputs: list[Named] = []  # of layers
        self.kept: dict[str, tuple[Named, Named]] = {}  # keys and values of every attention before
        self.of_sums: dict[str, tuple[str, str]] = {}  # the names of γ and β by which the next sums are normalized
        self.inputs: Any = None  # [R, L, d, l], of every layer
        self.log_P_mtp: Any = None  # of the head for the token after the next
        self.pending: list[str] = []  # of a run that ends before: the lines that a later one would have read
        self.misses = self.taken_over = 0
        if self.like is not None:
            self.theta, of_like = self.theta or self.like.theta, self.like.asked
            self.taken_over = min(of_like[use][1] if use in of_like else len(self.like.lines) for use in self.new)
            if not self.turns:
                self.asked = {use: of for use, of in of_like.items() if use not in self.new}
        elif self.theta is None:
            self.theta = {name: np.asarray(W, np.float64)[None] for name, W in self.case.theta.items()}

    def positions(self, l: int) -> Any:
        """The positions of l tokens: counted from 0, or those of an edge case."""
        given = self.case.inputs.get("positions", ())
        return np.asarray(given) if len(given) == l else np.arange(l)

    def noise(self, shape: Sequence[int]) -> Any:
        """Random relative errors, none of replica 0."""
        u = self.rng.uniform(-1, 1, (self.R, *shape[1:])) * self.epsilon
        u[0] = 0
        return u

    def rounded(self, x: Any) -> Any:
        """A rounded result."""
        return x * (1 + self.noise(x.shape)) if self.epsilon else x

    def product(self, A: Any, B: Any) -> Any:
        """A B, rounded."""
        C = A @ B
        return C + self.noise(C.shape) * (np.abs(A) @ np.abs(B)) if self.epsilon else C

    def sum(self, *terms: Any) -> Any:
        """A rounded sum."""
        total: Any = sum(terms)
        return total + self.noise(total.shape) * sum(np.abs(t) for t in terms) if self.epsilon else total

    def off(self, x: Any, by: Any, tables: Any = 0.0) -> Any:
        """x, off by at most ε times `by`, or by more where tables of positions were made in float32."""
        if not self.epsilon:
            return x
        return x + self.noise(x.shape) * np.maximum(1.0, tables * TABLES / self.epsilon) * by

    def name(self, slot: str, place: str) -> str:
        """The name of the choice at a place."""
        if (slot, place) not in self.asked:
            found = chosen(self.choices, slot, place)
            self.asked[slot, place] = self.base_name(slot, place) if found is None else found, len(self.lines)
        return self.asked[slot, place][0]

    def base_name(self, slot: str, place: str) -> str:
        """The name of the case's own choice at a place."""
        if self.turns and slot != "turns" and self.name("turns", place) == "next":
            # the place in the layer behind; behind the last, in the first
            place = re.sub(r"^l(\d+)", lambda match: f"l{int(match[1]) % self.case.sizes['L'] + 1}", place)
        return chosen(self.case.base, slot, place) or paper(slot)

    def use(self, slot: str, place: str, key: Key | None = None) -> Any:
        """The effect of the choice at a place; that the current line (or `key`) depends on it is noted."""
        of = key or self.key
        if of is not None:
            self.uses.setdefault(of.id, []).append((slot, place))
            self.keys[of.id] = of
        name = self.name(slot, place)
        if name.startswith("extra:"):
            return np.asarray(self.extras[name], np.float64)[None, :, None]
        return choice(slot, name).do

    def p(self, name: str) -> Any:
        """A parameter, [R or 1, ...]; None if there is none."""
        self.asked.setdefault(("θ", name), ("", len(self.lines)))
        return self.theta.get(name)

    def need(self, name: str) -> Any:
        """A parameter without which a choice makes no sense."""
        W = self.p(name)
        if W is None:
            raise KeyError(name)
        return W

    def line(
        self,
        key: Key,
        thunk: Thunk,
        inputs: Sequence[Named] = (),
        *,
        parts: bool = False,
        forms: Forms = (),
        show: bool = True,
    ) -> Named:
        """The value of a line: the foreign one where it was found.

        `inputs`: what it is computed from; `parts`: whether heads are in front; `forms`: in which other forms code may hold
        it; `show`: whether code may hold it at all.
        """
        seen = self.pins.get(key.id)
        if seen is None and self.like is not None and len(self.lines) < self.taken_over:
            seen = self.like.lines[key.id]
        if seen is None:
            value = self._evaluated(key, thunk)
            found = self._found(key, value, parts, forms) if self.finder is not None and show else (0.0, None, "", 0.0)
            tolerance, match, form, apart = found
            seen = Seen(key, value, tolerance, match, form, [source.key.id for source in inputs], parts, apart)
        if seen.read is None:
            seen.read = seen.value if seen.match is None or self.rough else self.rounded(seen.match.values[None])
        self.lines[key.id] = seen
        self.misses = 0 if seen.match is not None else self.misses + (show and self.finder is not None)
        is_spent = self.budget is not None and self.misses > self.budget
        if is_spent or (key.id == self.goal and seen.match is None):
            raise StopRun
        return Named(seen.read[:1] if self.rough else seen.read, key)

    def _evaluated(self, key: Key, thunk: Thunk) -> Any:
        outer, self.key = self.key, key
        try:
            with np.errstate(all="ignore"):
                value = thunk()
                used = self.uses.get(key.id, ()) if self.backward else ()
                if any(scope in self.backward for use in used for scope in scopes(*use)):
                    own = self.choices, self.asked
                    self.choices, self.asked = {**self.choices, **self.backward}, {}
                    value = np.real(value) + 1j * np.imag(thunk())
                    self.choices, self.asked = own
        finally:
            self.key = outer
        return np.real(value) + 0j if key.kind in self.detached else value

    def _found(self, key: Key, value: Any, parts: bool, forms: Forms) -> tuple[float, Any, str, float]:
        """The tolerance of a line, where the foreign code holds it, in which form, and how far it is from that."""
        tolerance = 0.0
        for name, form, back in (("", None, None), *forms):
            with np.errstate(all="ignore"):
                clean = value if form is None else form(value)
                is_masked = bool(np.real(clean.min(initial=0.0)) == -np.inf)
                clean = np.maximum(clean, LARGE) if is_masked else clean
                known = real(clean, self.case.lengths)
                tolerance = float(np.max(np.abs(known[1:] - known[0]))) if self.epsilon else 0.0
                if self.epsilon and key.kind in self.loose:
                    largest = float(np.abs(known[0]).max())
                    tolerance = min(tolerance * TABLES / self.epsilon, tolerance + 32 * TABLES * largest)
                match = self.finder.find(clean[0] if parts else clean[:1], tolerance, self.rough, is_masked)
                if match is not None:
                    values = match.values if parts else match.values[0]
                    apart = _apart(known, real(values, self.case.lengths), tolerance) if tolerance else 0.0
                    if apart > SPREADS:
                        continue
                    match.values = values if back is None else back(values)
                    return tolerance, match, name, apart
        if not parts and not key.place.startswith(("l", "enc", "dec")) and not np.iscomplexobj(value):
            match = self.finder.find_last(value[:1], tolerance)
            if match is not None:
                match.values = match.values[0]
                return tolerance, match, LAST, 0.0
        return tolerance, None, "", 0.0


def _apart(replicas: Any, theirs: Any, tolerance: float) -> float:
    """Mean difference of foreign numbers from replica 0, each as a multiple of the replicas' spread, or of what a largest
    difference of the replicas by `tolerance` makes of that.
    """
    off = replicas[1:] - replicas[0]
    spread = np.sqrt(np.mean(off * off, axis=0)) * tolerance / max(float(np.abs(off).max()), 1e-300)
    known = (replicas[0] > LARGE) & np.isfinite(theirs)
    apart = np.abs(theirs - replicas[0])[known] / (spread[known] + 0.01 * tolerance)
    return float(apart.mean()) if apart.size else 0.0
