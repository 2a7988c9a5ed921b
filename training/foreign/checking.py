"""Checking foreign code: from a case and a recording to a report, for a person and for a test."""

import dataclasses
import json
import pathlib
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from .cases import Case, read_case
from .catalogue import SLOTS, choice
from .diagnose import Diagnosis
from .evidence import Departure
from .learning import findings
from .recording import GlueError, Recording, is_foreign, record_files
from .telling import Walk

__all__ = [
    "WORST",
    "Observe",
    "Report",
    "case_of",
    "check",
    "check_files",
    "diagnose",
    "observed",
    "recorded",
    "sentence",
]

Observe = Callable[[Case, str], Recording]
"""Loads the case's θ into foreign code of a dtype, runs it on the case's inputs, and returns what was recorded."""

WORST = ("differs", "behind", "not shown", "in step", "equal")
"""Verdicts from the most to the least important: a line with several values has the first."""

STATUS = {"differs": "differ"}
"""The same of several."""

STACKS = {"l": "layers", "enc": "encoder layers", "dec": "decoder layers"}

OWN = ("case.json", "lines.safetensors", "parameters.safetensors", "gradients.safetensors", "updated.safetensors")


@dataclasses.dataclass
class Report:
    """The result of a check."""

    case: Case
    dtype: str
    walk: Walk
    departures: list[Departure]  # of the lines, then of loss, gradients, updates, sampling and decoding
    notes: list[str]
    declared: dict[str, str]  # the choices that were known to differ
    is_variant: str  # how the departures relate to a named variant, such as "… the lines that GPT2 changes"

    @property
    def ok(self) -> bool:
        """Whether nothing departs."""
        return all(d.kind == "harmless" for d in self.departures)

    def __str__(self) -> str:
        """The departures and what else was found, in words."""
        found = list(self.walk.status.values())
        counts = [f"{found.count(s)} {STATUS.get(s, s)}" for s in WORST[::-1] if s in found]
        head = f"Algorithm {self.case.algorithm}, {self.dtype}: {len(found)} values: {', '.join(counts)}"
        rows = [sentence(d) for d in merged(self.departures)]
        expect = [f'if that is meant: --expect "{self.expect}"'] if self.expect else []
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([head, *rows, *filter(None, [self.is_variant]), *expect, *notes])

    @property
    def expect(self) -> str:
        """The `expect` that declares these departures, if all can be declared: see `check`."""
        found = [d for d in self.departures if d.kind != "harmless"]
        said = {scope: name for d in found for scope, name in d.choices.items() if scope.partition("@")[0] in SLOTS}
        is_whole = all(d.kind == "named" and set(d.choices) & set(said) for d in found)
        return ",".join(map("=".join, said.items())) if is_whole and "extra:" not in "".join(said.values()) else ""


def observed(observe: Observe, case: Case, dtype: str) -> Recording:
    """The recording of foreign code on a case.

    Raises:
        GlueError: if it raises an error, or returns no recording, or one of nothing.
    """
    try:
        recording = observe(case, dtype)
    except GlueError:
        raise
    except Exception as error:
        frames = [f for f, _ in traceback.walk_tb(error.__traceback__) if is_foreign(f.f_code.co_filename)]
        at = f" ({pathlib.Path(frames[-1].f_code.co_filename).name}:{frames[-1].f_lineno})" if frames else ""
        raise GlueError(
            f"observe: raised {type(error).__name__}: {error}{at}, before anything was compared; the case is of "
            f"Algorithm {case.algorithm}, with {', '.join(f'{n} {size}' for n, size in case.sizes.items())}; "
            "another algorithm's or variant's has other parameters and inputs"
        ) from error
    if not isinstance(recording, Recording):
        got = type(recording).__name__
        raise GlueError(f"observe: expected a recording, got {got}; return record_torch(lambda: model(x), model)")
    if not recording.tensors:
        raise GlueError("observe: expected numbers that are computed within the call, got none; run the code inside "
                        "the function that is given to record_torch, record_jax or record_numpy, and give it θ there")  # fmt: skip
    return recording


def merged(departures: list[Departure]) -> list[Departure]:
    """Departures of the same line with the same text as one, with all places."""
    found: dict[Any, Departure] = {}
    for d in departures:
        visit = (d.algorithm, d.line, d.what, d.kind, d.text)
        where = [found[visit].where] if visit in found else []
        found[visit] = dataclasses.replace(found.get(visit, d), where=", ".join(dict.fromkeys([*where, d.where])))
    return list(found.values())


def _places(where: str) -> str:
    """Places one by one, but "layers 2 to 6, line 6" where more than two layers follow each other."""
    runs: list[list[str]] = []
    for place in where.split(", "):
        follows = runs and re.sub(r"\d+", lambda n: str(int(n[0]) + 1), runs[-1][-1], count=1) == place
        runs = [*runs[:-1], [*runs[-1], place]] if follows else [*runs, [place]]
    return ", ".join(_layers(run[0], run[-1]) if len(run) > 2 else ", ".join(run) for run in runs)


def _layers(first: str, last: str) -> str:
    """Such as "layers 2 to 6, line 6" from "l2/6" to "l6/6"."""
    stack, l, line = re.fullmatch(r"([a-z]+)(\d+)/(.*)", first).groups()  # type: ignore[union-attr]
    l_last = last.removeprefix(stack).partition("/")[0]
    return f"{STACKS[stack]} {l} to {l_last}, line {line}"


def sentence(d: Departure) -> str:
    """A departure in words: the line, where, its formula, what the code has instead, and in which operation."""
    from training.crosscheck.algorithms import PSEUDOCODE  # noqa: PLC0415  # JAX, which the matcher does not need

    lines = PSEUDOCODE[d.algorithm]
    formula = lines.line(d.line).text if d.line in lines.order else ""
    where = _places(re.sub(r"/[qk]\b", "", d.where))  # which of both the line says
    what, where = f" ({d.what})" if d.what else "", f" in {where}" if where not in ("", "everywhere") else ""
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
    """Everything that a recording departs in from a case; `expect`: see `check`; `tell` receives progress."""
    declared = _declared(case, expect)
    diagnosis = Diagnosis(case, recording, declared, tell)
    if recording.parameters and len(diagnosis.missing) == len(case.theta):
        raise GlueError("observe: expected parameters that hold θ, got none that do; load θ into the model that runs, "
                        "such as by load(model, TABLE, case.theta, layers=case.sizes['L'])")  # fmt: skip
    walk = diagnosis.walk()
    departures = [*walk.departures, *findings(diagnosis, walk)]
    notes = list(walk.notes)
    if diagnosis.missing and recording.parameters:
        missing = ", ".join(diagnosis.missing)
        notes.append(f"no parameter of the code holds {missing}: load it, if the code has such a parameter")
    told = _variant_of(case, {**declared, **walk.choices})
    return Report(case, recording.dtype, walk, departures, notes, declared, told)


def _declared(case: Case, expect: str | Mapping[str, str] | None) -> dict[str, str]:
    """The choices that are known to differ; of a text, its items one after the other.

    Raises:
        ValueError: for an item that is neither a variant of the algorithm, nor FILE.json, nor SLOT=CHOICE.
    """
    if not isinstance(expect, str):
        found = dict(expect or {})
    else:
        items = re.split(
            r",\s*(?=[^,=]+=|[A-Z0-9_]+\s*(?:,|$)|[^,=]+\.json)", expect
        )  # names of choices may have commas
        found = {scope: name for item in items for scope, name in _item(case, item.strip()).items()}
    for scope, name in found.items():
        slot = scope.partition("@")[0]
        if slot not in SLOTS:
            raise ValueError(f"expect: expected a slot among {', '.join(SLOTS)}, got {slot!r}")
        try:
            choice(slot, name)
        except (KeyError, ValueError, IndexError):
            names = ", ".join(SLOTS[slot])
            raise ValueError(f"expect: expected {slot} to be one of {names}; got {name!r}") from None
    return found


def _item(case: Case, item: str) -> dict[str, str]:
    scope, is_choice, name = item.partition("=")
    if scope == "epsilon":
        return {"norm_epsilon": f"+{float(name):g}"}
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
        GlueError: if there is nothing to check.
    """
    from .making import make_case  # noqa: PLC0415  # JAX

    case = make_case(algorithm, variant, seed, edge=edge, **(sizes or {}))
    recording = observed(observe, case, dtype)
    report = diagnose(case, recording, expect)
    if recording.dtype != dtype:
        report.notes.append(f"the code computes in {recording.dtype}, not in {dtype}, and is judged by that")
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
    return diagnose(case_of(directory), recorded(directory, dtype), expect, tell)


def case_of(directory: pathlib.Path) -> Case:
    """The case that a directory holds, or the one above it."""
    return read_case(directory if (directory / "case.json").is_file() else directory.parent)


def recorded(directory: pathlib.Path, dtype: str | None) -> Recording:
    """The tensors that any language wrote into a directory."""
    return record_files([path for path in sorted(directory.iterdir()) if path.name not in OWN], dtype)
