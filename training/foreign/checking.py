"""Checking foreign code: from a case and a recording to a report, for a person and for a test."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from .cases import Case, read_case
from .catalogue import SLOTS, choice
from .diagnose import Diagnosis, Walk
from .evidence import Departure
from .learning import findings
from .recording import Recording, record_files

__all__ = ["Observe", "Report", "check", "check_files", "diagnose"]

Observe = Callable[[Case, str], Recording]
"""Loads the case's θ into foreign code of a dtype, runs it on the case's inputs, and returns what was recorded."""

OWN = ("case.json", "lines.safetensors", "parameters.safetensors", "gradients.safetensors", "updated.safetensors")


@dataclasses.dataclass
class Report:
    """What a check found."""

    case: Case
    dtype: str
    walk: Walk
    departures: list[Departure]  # of the lines, then of loss, gradients, updates, sampling and decoding
    notes: list[str]
    is_variant: str  # how the departures are told by a named variant's, such as "… the lines that GPT2 changes"

    @property
    def ok(self) -> bool:
        """Whether nothing departs."""
        return all(d.kind == "harmless" for d in self.departures)

    def __str__(self) -> str:
        """The departures and what else was found, in words."""
        found = list(self.walk.status.values())
        counts = [f"{found.count(s)} {s}" for s in ("equal", "in step", "differs", "not shown", "behind") if s in found]
        head = f"Algorithm {self.case.algorithm}, {self.dtype}: {len(found)} values: {', '.join(counts)}"
        rows = [_sentence(d) for d in merged(self.departures)]
        return "\n".join([head, *rows, *filter(None, [self.is_variant]), *(f"note: {note}" for note in self.notes)])


def merged(departures: list[Departure]) -> list[Departure]:
    """Departures of the same line with the same text as one, with all places."""
    found: dict[Any, Departure] = {}
    for d in departures:
        visit = (d.algorithm, d.line, d.what, d.kind, d.text)
        where = [found[visit].where] if visit in found else []
        found[visit] = dataclasses.replace(found.get(visit, d), where=", ".join(dict.fromkeys([*where, d.where])))
    return list(found.values())


def _sentence(d: Departure) -> str:
    """A departure in words: the line, where, its formula, what the code has instead, and in which operation."""
    from training.crosscheck.algorithms import PSEUDOCODE  # noqa: PLC0415  # JAX, which the matcher does not need

    lines = PSEUDOCODE[d.algorithm]
    formula = lines.line(d.line).text if d.line in lines.order else ""
    what, where = f" ({d.what})" if d.what else "", f" in {d.where}" if d.where not in ("", "everywhere") else ""
    equal = "equal if " if d.kind in ("named", "harmless") else ""
    loader = ": so does the code, or your loading of θ" if d.may_be_loading else ""
    seen = f"\n    in {d.seen_in}" if d.seen_in else ""
    return f"Algorithm {d.algorithm}, line {d.line}{what}{where}: {formula}\n    {equal}{d.text}{loader}{seen}"


def diagnose(
    case: Case,
    recording: Recording,
    expect: str | Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Everything that a recording departs in from a case; `expect`: see `check`; `tell`: is told of progress."""
    declared = _declared(case, expect)
    diagnosis = Diagnosis(case, recording, declared, tell)
    walk = diagnosis.walk()
    departures = [*walk.departures, *findings(diagnosis, walk)]
    notes = list(walk.notes)
    if diagnosis.missing and recording.parameters:
        notes.append(f"no foreign parameter holds {', '.join(diagnosis.missing)}")
    return Report(case, recording.dtype, walk, departures, notes, _variant_of(case, {**declared, **walk.choices}))


def _declared(case: Case, expect: str | Mapping[str, str] | None) -> dict[str, str]:
    """The choices that are known to differ; of a text, its items one after the other.

    Raises:
        ValueError: for an item that is neither a variant of the algorithm, nor FILE.json, nor SLOT=CHOICE.
    """
    if not isinstance(expect, str):
        found = dict(expect or {})
    else:
        found = {scope: name for item in expect.split(",") for scope, name in _item(case, item.strip()).items()}
    for scope, name in found.items():
        slot = scope.partition("@")[0]
        if slot not in SLOTS:
            raise ValueError(f"expect: expected a slot among {', '.join(SLOTS)}, got {slot!r}")
        try:
            choice(slot, name)
        except (KeyError, ValueError):
            names = ", ".join(SLOTS[slot])
            raise ValueError(f"expect: expected {slot} to be one of {names}; got {name!r}") from None
    return found


def _item(case: Case, item: str) -> dict[str, str]:
    scope, is_choice, name = item.partition("=")
    if is_choice:
        return {scope: name}
    if item.endswith(".json"):
        return json.loads(pathlib.Path(item).read_text("utf-8"))
    known = _variants(case)
    if item not in known:
        names = ", ".join(known)
        raise ValueError(
            f"expect: expected one of {names} (Algorithm {case.algorithm}), FILE.json or SLOT=CHOICE, got {item!r}"
        )
    return known[item]


def _variants(case: Case) -> dict[str, dict[str, str]]:
    """The named variants of a case's algorithm, and their choices."""
    from .vocabulary import named_choices  # noqa: PLC0415

    known = named_choices(case.sizes.get("L", case.sizes.get("L_enc", 1)))
    return {name: choices for name, (n, choices) in known.items() if n == case.algorithm}


def _variant_of(case: Case, choices: Mapping[str, str]) -> str:
    """Which named variant changes these lines."""
    if case.variant != "PAPER" or case.algorithm < 8:
        return ""
    mine, best = set(choices.items()) - set(case.base.items()), ("", 0)
    for name, of in _variants(case).items():
        theirs = set(of.items()) - set(case.base.items())
        if theirs and theirs == mine:
            return f"together these are the lines that {name} changes"
        if theirs <= mine and len(theirs) > max(best[1], 1):
            best = name, len(theirs)
    return f"among these are all the lines that {best[0]} changes" if best[0] else ""


def check(
    observe: Observe,
    algorithm: int | None = None,
    *,
    variant: str = "PAPER",
    edge: str = "",
    expect: str | Mapping[str, str] | None = None,
    dtype: str = "float64",
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> Report:
    """Check foreign code against a random case of an algorithm.

    `algorithm`: 10 unless given, or the edge case's; `observe`: loads, runs and records the code; `variant`: whose case;
    `edge`: an edge case such as "padding"; `expect`: what is known to depart, so that only
    the rest is reported: scopes and names of choices, or a text such as "GPT2, loss=mean": variants, choices, FILE.json.

    Raises:
        AssertionError: if anything else departs; its message is the report.
    """
    from .making import make_case  # noqa: PLC0415  # JAX

    case = make_case(algorithm, variant, seed, edge=edge, **(sizes or {}))
    report = diagnose(case, observe(case, dtype), expect)
    if not report.ok:
        raise AssertionError(str(report))
    return report


def check_files(
    directory: str | pathlib.Path,
    *,
    expect: str | Mapping[str, str] | None = None,
    dtype: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """The report of tensors that any language wrote, into a case's directory or a folder in it; see `diagnose`.

    Raises:
        ValueError: if neither holds a case, or there are no tensors.
    """
    directory = pathlib.Path(directory)
    case = read_case(directory if (directory / "case.json").is_file() else directory.parent)
    files = [path for path in sorted(directory.iterdir()) if path.name not in OWN]
    return diagnose(case, record_files(files, dtype), expect, tell)
