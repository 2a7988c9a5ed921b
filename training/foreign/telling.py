"""The result of a walk: whether each line is found, and the departures, each once, with all their places."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .catalogue import HARMLESS, SLOTS
from .evidence import Departure, casts, finite_masks, has_narrow_tables, in_step, seen_in
from .match import layout
from .reference import Reference
from .run import LAST, Key, kind_of

__all__ = ["Walk", "told"]


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
        if seen.match is not None:
            layouts[visit] = layout(seen.match) + (f", {seen.form}" if seen.form else "")
        is_wrong = any(d.is_at(seen.key.place) and f":{visit.partition(':')[2]}" == line for d, line in wrong)
        if seen.match is not None:
            status[visit] = "differs" if visit in walked.taken or is_wrong else "equal"
        elif i > last and not ok[visit]:
            status[visit] = "behind" if walked.is_lost else "not shown"
        else:
            status[visit] = "in step" if ok[visit] and not is_wrong else "differs"
    is_last = any(seen.form == LAST for seen in run.lines.values())
    dtypes, narrow_tables = walked.recording.dtypes, walked.dtype == "float64" and has_narrow_tables(run)
    notes = [
        *walked.recording.notes,
        *(
            [f"float32 within float64, first in {dtypes['float32']}: what follows is judged by that"]
            if walked.loose
            else []
        ),
        *(["tables of positions in float32 within float64: gradients are judged by that"] if narrow_tables else []),
        *casts(run, walked.recording),
        *(["only the last token's logits are computed, and equal"] if is_last else []),
        *(
            text
            for place, text in walked.cut.items()
            if any(d.kind == "unknown" and d.is_at(place) for d in departures)
        ),
        *([] if "empty" in {scope.partition("@")[0] for scope in walked.choices} else finite_masks(run)),
    ]
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
    return (
        any(
            visit not in other.lines
            or not np.array_equal(other.lines[visit].value, run.lines[visit].value, equal_nan=True)
            for visit in users
        )
        or not users
    )


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
