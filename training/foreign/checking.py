"""Checking foreign code: from a case and a recording to a report, for a person and for a test."""

import json
import pathlib
import re
import traceback
from collections.abc import Callable, Mapping

from .cases import Case, read_case
from .catalogue import SLOTS, choice
from .diagnose import Diagnosis
from .learning import findings
from .recording import GlueError, Recording, is_foreign, record_files
from .report import Report, merged

__all__ = [
    "Observe",
    "case_of",
    "check",
    "check_files",
    "diagnose",
    "observed",
    "recorded",
]

Observe = Callable[[Case, str], Recording]
"""Loads the case's θ into foreign code of a dtype, runs it on the case's inputs, and returns what was recorded."""

OWN = ("case.json", "lines.safetensors", "parameters.safetensors", "gradients.safetensors", "updated.safetensors")


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
        at = "; expected a function observe(case, dtype)"
        if frames:
            at = f" ({pathlib.Path(frames[-1].f_code.co_filename).name}:{frames[-1].f_lineno})"
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
    return Report(case, recording.dtype, walk, merged(departures), notes, declared, told)


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
