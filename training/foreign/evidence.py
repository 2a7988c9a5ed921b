"""The evidence of a run: the lines that are explained, by which foreign tensors, and the departures.

The result of a walk tells whether each line is found, and the departures, each once, with all their places.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .cases import rounded
from .catalogue import HARMLESS, LOADED, SLOTS
from .match import Match, Observed, layout
from .recording import Recording
from .reference import Reference
from .run import LARGE, LAST, TABLES, Key, kind_of

__all__ = [
    "Departure", "Walk", "first_nan", "in_step", "is_float32", "is_halfway", "is_repeated", "is_same", "measured", "needed", "score",
    "told", "without_nan",
]  # fmt: skip


FORGET = ("(e − m)/√v", "normalized")
"""Values that are the same if what they are computed from is multiplied by a number."""

NEARLY = 0.95
"""Share of the products that must fit one order of γ and the cast, since a few sums may be rounded differently."""

FEW = 8  # with fewer numbers, or a difference of fewer roundings, a factor or a sum proves nothing


@dataclasses.dataclass(frozen=True)
class Departure:
    """A line that the foreign code has otherwise."""

    algorithm: int
    line: str
    what: str  # which value of the line, where it has several
    where: str  # such as "l1/6", "l*/6" or "everywhere"
    text: str  # what the code computes instead
    kind: str  # "named"; "unknown": no choice gives it; "harmless": without effect on what follows; "stopped"
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seen_in: str = ""  # the foreign operation, its file and line

    @property
    def visit(self) -> str:
        """The id of its line, where it is at one place."""
        return Key(self.where, self.algorithm, self.line, self.what).id

    def is_at(self, place: str) -> bool:
        """Whether it is at a place, which is perhaps one of several."""
        own = (place, kind_of(place))
        finer = tuple(f"{p}/" for p in own if p)  # such as that of the keys
        at = self.where.split(", ")
        return any(p in ("everywhere", *own) or place.startswith(f"{p}/") or p.startswith(finer) for p in at)

    @property
    def may_be_loading(self) -> bool:
        """Whether the cause may as well be how θ was loaded."""
        return any(scope.partition("@")[0] in LOADED for scope in self.choices)


def needed(run: Reference) -> dict[str, bool]:
    """Whether the last line depends on a line, or what a run that ends before has not yet read."""
    ids = list(run.lines)
    matters = dict.fromkeys(ids, False) | dict.fromkeys([*ids[-1:], *run.pending], True)
    for visit in reversed(ids):
        for source in run.lines[visit].inputs if matters[visit] else ():
            if source in matters:
                matters[source] = True
    return matters


def in_step(run: Reference) -> dict[str, bool]:
    """Whether each line was found, or what follows from it was, or nothing follows from it any more.

    A mean or a variance says little of the rows that it is of, in a narrow dtype nothing; and a norm forgets a factor, so
    that a line is in step by a norm alone only if everything else that follows from it is, too.
    """
    matters, followers = needed(run), {visit: [] for visit in run.lines}
    for visit, seen in run.lines.items():
        for source in seen.inputs if matters[visit] else ():
            if source in followers and (np.shape(seen.value)[-2] > 1 or np.shape(run.lines[source].value)[-2] == 1):
                followers[source].append(visit)
    is_sure = {visit: seen.match is not None or not matters[visit] for visit, seen in run.lines.items()}
    ok = dict(is_sure)
    for visit in reversed(list(run.lines)):
        behind = followers[visit]
        is_sure[visit] |= any(is_sure[other] and run.lines[other].key.what not in FORGET for other in behind)
        ok[visit] = is_sure[visit] or (bool(behind) and all(ok[other] for other in behind))
    return ok


def score(run: Reference) -> tuple[int, list[str]]:
    """Number of lines in step before the first that is not, and of those found, each tensor once."""
    ok, ids = in_step(run), list(run.lines)
    first = next((i for i, visit in enumerate(ids) if not ok[visit]), len(ids))
    evidence, claimed = [], set()
    for visit in ids[: first + 25]:
        match = run.lines[visit].match
        if match is not None:
            raw = match.raw
            evidence += [visit] if sum(row not in claimed for row in raw) > len(raw) / 2 else []
            claimed.update(raw)
    return first, evidence


def is_same(one: Match, other: Match) -> bool:
    """Whether two matches are of the same tensors, or of the same rows of copies of them."""
    times = ({tensor.time for tensor in match.tensors} for match in (one, other))
    return len(set(map(frozenset, times))) == 1 or set(one.raw) == set(other.raw)


def is_float32(match: Match) -> bool:
    """Whether a match is of numbers that float32 has."""
    shown = (np.where(tensor.value < LARGE, LARGE, tensor.value) for tensor in match.tensors)  # but for masked scores
    return all((value == value.astype(np.float32)).all() for value in shown)


def has_narrow_tables(run: Reference) -> bool:
    """Whether code in float64 has tables of positions from float32: turned rows, or embeddings, are off by their error."""
    embedded = {(2, "return"), (8, "2"), (8, "11"), (9, "2"), (10, "2")}
    seen = [s for s in run.lines.values() if s.key.what.endswith("turned") or (s.key.algorithm, s.key.line) in embedded]
    return any(s.match.worst > 1e-3 * TABLES * np.abs(s.match.values).max(initial=0.0) for s in seen if s.match)


def measured(theirs: np.ndarray, mine: np.ndarray, tolerance: float) -> str:
    """End of the sentence "equal if …" for a value that departs by a number alone; else ""."""
    a, b = (np.real(A[np.isfinite(mine)]).reshape(-1) for A in (mine, theirs))
    near = 2 * tolerance + 1e-12 * float(np.abs(b).max(initial=0.0))
    if len(a) < FEW or not np.isfinite(b).all() or np.abs(b - a).max() < FEW * near:
        return ""
    factor, added = float(a @ b / max(a @ a, 1e-300)), float((b - a).mean())
    if np.abs(b - factor * a).max() <= near:
        return f"it is multiplied by {factor:.6g}"
    if np.abs(b - a - added).max() <= near:
        return f"{added:.6g} is added to it"
    return ""


def is_repeated(run: Reference, visit: str) -> bool:
    """Whether an earlier line has the same value, so that finding it proves nothing of this one."""
    value = run.lines[visit].value[0]
    for other in itertools.takewhile(lambda other: other != visit, run.lines):
        earlier = run.lines[other].value[0]
        if earlier.shape == value.shape and np.allclose(earlier, value, rtol=1e-5):
            return True
    return False


def is_halfway(trial: Reference, visit: str, lost: Observed | None) -> bool:
    """Whether a trial finds attention's weights, but not what they give: any step on the way to them is found so.

    What NaN gives is NaN: in code that has some, the weights are no step before the first of it, ``lost``.
    """
    if not visit.endswith((":4.5", ":4.return softmax")):
        return False
    place = trial.lines[visit].key.place
    weights = trial.lines.get(f"{place}:4.return softmax")
    if weights is None or weights.match is None or in_step(trial).get(f"{place}:4.return", True):
        return False
    return lost is None or min(tensor.time for tensor in weights.match.tensors) < lost.time


def seen_in(run: Reference, departure: Departure) -> str:
    """The foreign operation that holds what departs, or the next value that was found."""
    of, started = Key("", departure.algorithm, departure.line, departure.what).id[1:], False
    for seen in run.lines.values():
        key = seen.key
        started |= departure.is_at(key.place) and key.id.partition(":")[2] == of
        if started and seen.match is not None:
            return seen.match.tensors[0].name
    return ""


def finite_masks(run: Reference) -> list[str]:
    """A note, if masked scores are a large number."""
    for seen in run.lines.values():
        if (seen.key.algorithm, seen.key.line) == (4, "5") and seen.match is not None:
            raw = np.concatenate([t.value[t.value < LARGE].reshape(-1) for t in seen.match.tensors])
            if raw.size and np.isfinite(raw).all():
                scores = f"masked scores are about {raw.max():.3g} rather than −∞"
                return [f"Algorithm 4, line 5: {scores} (the same result)"]
    return []


def casts(run: Reference, recording: Recording) -> list[str]:
    """A note on norms in float32 in code of another dtype: whether γ multiplies before or after the cast back."""
    ways: dict[str, list[str]] = {}
    for place, of in dict.fromkeys((seen.key.place, seen.key.algorithm) for seen in run.lines.values()):
        n, scaled = (run.lines.get(f"{place}:6.return{what}") for what in (" (e − m)/√v", ""))
        if of == 6 and n is not None and scaled is not None and n.match and scaled.match:
            way = _cast(n.match, scaled.match, scaled.value[0], recording)
            ways.setdefault(way, []).append(place)
    ways.pop("", None)
    return [f"γ multiplies {way} the norm is cast from float32 to {recording.dtype}"
            + (f", in {', '.join(places)}" if len(ways) > 1 else "") for way, places in ways.items()]  # fmt: skip


def _cast(n: Match, scaled: Match, product: np.ndarray, recording: Recording) -> str:
    """Whether a norm is cast "before" or "after" it is multiplied by γ; `product`: that of the wide numbers."""

    def narrow(a: np.ndarray) -> np.ndarray:
        return rounded({"": a}, recording.dtype)[""]

    if recording.dtype == "float64":
        return ("before" if is_float32(scaled) else "after") if is_float32(n) else ""
    if (narrow(n.values) == n.values).all():
        return ""
    wanted = narrow(scaled.values)
    if (wanted != scaled.values).any():  # the product is wide; it may be cast later
        later = (t.value for t in recording.tensors if t.value.size == wanted.size)
        return "before" if any(np.array_equal(np.sort(a, None), np.sort(wanted, None)) for a in later) else ""
    with np.errstate(all="ignore"):
        after = narrow(product / n.values * narrow(n.values))
    shares = {way: float(np.mean(narrow(a) == wanted)) for way, a in (("before", product), ("after", after))}
    best = max(shares, key=shares.__getitem__)
    return best if shares[best] > NEARLY else ""


def first_nan(recording: Recording) -> Observed | None:
    """The first tensor that has NaN, if the outputs have."""
    if not any(np.isnan(output).any() for output in recording.outputs):
        return None
    return next((tensor for tensor in recording.tensors if np.isnan(tensor.value).any()), None)


def without_nan(recording: Recording) -> list[Observed]:
    """The tensors that are NaN in places, of no whole row, with 0 there, as weights are where a softmax is 0/0."""
    found = []
    for tensor in recording.tensors:
        nan = np.isnan(tensor.value)
        if nan.any() and nan.ndim > 1 and not (nan.all(-1).any() or nan.all(-2).any()):
            found.append(dataclasses.replace(tensor, value=np.where(nan, 0.0, tensor.value)))
    return found


@dataclasses.dataclass
class Walk:
    """The result of a walk."""

    departures: list[Departure]
    choices: dict[str, str]  # those adopted
    run: Reference  # the last run, with these
    status: dict[str, str]  # visit → "equal", "in step", "not shown", "differs" or "behind"
    layouts: dict[str, str]  # visit → where the value is
    notes: list[str]
    is_lost: bool  # whether what is behind the last departure was not checked
    narrow_tables: bool = False  # whether tables of positions in float64 are from float32


def told(walked: Any, run: Reference) -> Walk:
    """Return the result of a walk; `walked`: its diagnosis; `run`: the last one."""
    ok, ids = in_step(run), list(run.lines)
    last = max((i for i, visit in enumerate(ids) if ok[visit]), default=-1)
    found = [*_standing(walked, run), *_harmless(walked, run, ok)]
    departures = [dataclasses.replace(d, seen_in=seen_in(run, d)) for d in found]
    wrong = [(d, Key("", d.algorithm, d.line, d.what).id) for d in departures if d.kind != "harmless"]
    status, layouts = {}, {}
    for i, (visit, seen) in enumerate(run.lines.items()):
        is_wrong = any(d.is_at(seen.key.place) and f":{visit.partition(':')[2]}" == line for d, line in wrong)
        if seen.match is not None:
            layouts[visit] = layout(seen.match) + (f", {seen.form}" if seen.form else "")
            status[visit] = "differs" if visit in walked.taken or is_wrong else "equal"
        elif i > last and not ok[visit]:
            status[visit] = "behind" if walked.is_lost else "not shown"
        else:
            status[visit] = "in step" if ok[visit] and not is_wrong else "differs"
    dtypes, narrow_tables = walked.recording.dtypes, walked.dtype == "float64" and has_narrow_tables(run)
    notes, unknown = list(walked.recording.notes), [d for d in departures if d.kind == "unknown"]
    if walked.loose:
        notes.append(f"float32 within float64, first in {dtypes['float32']}: what follows is judged by that")
    if narrow_tables:
        notes.append("tables of positions in float32 within float64: gradients are judged by that")
    notes += casts(run, walked.recording)
    if any(seen.form == LAST for seen in run.lines.values()):
        notes.append("only the last token's logits are computed, and equal")
    notes += [text for place, text in walked.cut.items() if any(d.is_at(place) for d in unknown)]
    if "empty" not in {scope.partition("@")[0] for scope in walked.choices}:
        notes += finite_masks(run)
    return Walk(departures, dict(walked.choices), run, status, layouts, notes, walked.is_lost, narrow_tables)


def _standing(walked: Any, run: Reference) -> Iterator[Departure]:
    """The departures whose choices the last run has, each once, with all places that it has them at."""
    done = set()
    for d in walked.departures:
        for scope, name in d.choices.items() if d.kind == "named" else ():
            slot, visit = scope.partition("@")[0], (d.algorithm, d.line, d.what, d.text)
            every = [place for of, place in run.asked if of == slot]
            places = [p for p in every if run.name(slot, p) == name != run.base_name(slot, p)]
            if places and visit not in done:
                done.add(visit)
                where = _where([p for p in places if _matters(walked, run, slot, p)] or places, every)
                scopes = [slot] if where == "everywhere" else [f"{slot}@{place}" for place in where.split(", ")]
                yield dataclasses.replace(d, where=where, choices=dict.fromkeys(scopes, name))
        if d.kind != "named" or not d.choices:
            yield d


def _matters(walked: Any, run: Reference, slot: str, place: str) -> bool:
    """Whether a choice changes a line at a place, as a causal mask does not where the paper's is causal."""
    other = walked.run({**walked.choices, f"{slot}@{place}": run.base_name(slot, place)}, walked.taken)
    users = [visit for visit, used in run.uses.items() if (slot, place) in used and visit in run.lines]
    both = [(other.lines[visit].value, run.lines[visit].value) for visit in users if visit in other.lines]
    is_equal = len(both) == len(users) > 0 and all(np.array_equal(*values, equal_nan=True) for values in both)
    return not is_equal


def _where(places: list[str], every: list[str]) -> str:
    """Some of the places where a choice may be: "everywhere", or "l*/6" for every layer's, or one by one."""
    if set(places) >= set(every):
        return "everywhere"
    kinds = {kind: [p for p in places if kind_of(p) == kind] for kind in map(kind_of, places)}
    is_whole = {
        kind: kind not in of and len(of) == sum(kind_of(p) == kind for p in every) for kind, of in kinds.items()
    }
    return ", ".join(itertools.chain.from_iterable([kind] if is_whole[kind] else of for kind, of in kinds.items()))


def _harmless(walked: Any, run: Reference, ok: Mapping[str, bool]) -> Iterator[Departure]:
    """Lines that differ without effect on what follows."""
    done = set()
    for visit, seen in run.lines.items():
        for slot, place in run.uses.get(visit, ()) if seen.match is None and ok[visit] else ():
            for name in SLOTS[slot] if slot in HARMLESS and (slot, kind_of(place)) not in done else ():
                scope, key = f"{slot}@{place}", seen.key
                other = walked.run({**walked.choices, scope: name}, walked.taken).lines.get(visit)
                is_found = other is not None and other.match is not None and not other.form
                if name != run.name(slot, place) and is_found:
                    done.add((slot, kind_of(place)))
                    text = f"{SLOTS[slot][name].text} (without effect on what follows)"
                    where = kind_of(place)
                    yield Departure(key.algorithm, key.line, key.what, where, text, "harmless", {scope: name})
                    break
