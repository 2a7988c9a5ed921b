"""Checking foreign code: from a case and a recording to a report, for a person and for a test.

Two programs are compared with each other likewise: the first line in which they differ, and what each line adds to the
difference. The code that the library transformers has of a kind of model is known by its name; nothing is downloaded.
"""

import dataclasses
import importlib
import json
import pathlib
import re
import tempfile
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .cases import Case, read_case
from .catalogue import SLOTS, choice
from .diagnose import Diagnosis, Tell
from .learning import findings
from .recording import GlueError, Recording, is_foreign, record_files, record_torch
from .reference import Reference
from .report import Report, merged, sentence
from .run import Seen

__all__ = ["Beside", "Observe", "beside", "case_of", "check", "diagnose", "from_transformers", "observed", "recorded", "variant_of"]  # fmt: skip

Observe = Callable[[Case, str], Recording]
"""Loads the case's θ into foreign code of a dtype, runs it on the case's inputs, and returns what was recorded."""

Expect = str | Mapping[str, str] | None
"""What is known to depart: see `check`."""

OWN = ("case.json", "lines.safetensors", "parameters.safetensors", "gradients.safetensors", "updated.safetensors")

LEAST = 0.01  # shares below it are not told

Line = tuple[int, str]  # an algorithm, and the number of its line

TASKS = {8: "ed", 9: "e", 10: "d"}
MODELS = {8: "AutoModelForSeq2SeqLM", 9: "AutoModelForMaskedLM", 10: "AutoModelForCausalLM"}
VARIANTS = {
    "deepseek_v3": "DEEPSEEK", "distilbert": "BERT", "gemma3_text": "GEMMA3", "glm_moe_dsa": "GLM5", "gpt_neox": "NEOX",
    "granitemoehybrid": "GRANITE_HYBRID", "hunyuan_v1_dense": "HUNYUAN", "llama4_text": "LLAMA4",
    "modernbert-decoder": "ETTIN", "qwen3_5_moe_text": "QWEN3_5_MOE", "qwen3_5_text": "QWEN3_5",
}  # fmt: skip
"""A kind → the variant with its lines, where that has another name."""
RECURRENCES = "GatedDelta", "KimiDelta", "Mamba2", "Parallel", "RGLRU", "ShortConvolution"


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


def diagnose(case: Case, recording: Recording, expect: Expect = None, tell: Tell = lambda _: None) -> Report:
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


def _declared(case: Case, expect: Expect) -> dict[str, str]:
    """The choices that are known to differ; of a text, its items one after the other.

    Raises:
        ValueError: for an item that is neither a variant of the algorithm, nor FILE.json, nor SLOT=CHOICE.
    """
    if not isinstance(expect, str):
        found = dict(expect or {})
    else:  # names of choices may have commas
        items = re.split(r",\s*(?=[^,=]+=|[A-Z0-9_]+\s*(?:,|$)|[^,=]+\.json)", expect)
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
        names = f"{', '.join(known)} (Algorithm {case.algorithm})"
        raise ValueError(f"expect: expected one of {names}, FILE.json or SLOT=CHOICE, got {item!r}")
    return known[item]


def _variants(case: Case) -> dict[str, dict[str, str]]:
    """The named variants of a case's algorithm, and their choices."""
    from .making import named_choices  # noqa: PLC0415

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
    expect: Expect = None,
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


def case_of(directory: pathlib.Path) -> Case:
    """The case that a directory holds, or the one above it.

    Raises:
        ValueError: if neither holds a case.
    """
    return read_case(directory if (directory / "case.json").is_file() else directory.parent)


def recorded(directory: pathlib.Path, dtype: str | None) -> Recording:
    """The tensors that any language wrote into a case's directory, or a folder in it.

    Raises:
        ValueError: if there are no tensors.
    """
    return record_files([path for path in sorted(directory.iterdir()) if path.name not in OWN], dtype)


@dataclasses.dataclass
class Beside:
    """The differences between two programs."""

    one: Report
    other: Report  # its departures are those from the one
    apart: np.ndarray  # log-probabilities of the tokens x[2], …, x[ℓ]: those of the other, less those of the one
    shares: dict[Line, float]  # of this difference, what a line adds in its own arithmetic; the sum is 1

    @property
    def ok(self) -> bool:
        """Whether no line differs by more than the dtypes explain."""
        return self.other.ok

    def __str__(self) -> str:
        """The first line that differs, and the shares."""
        departures = [d for d in self.other.departures if d.kind != "harmless"]
        dtypes = " and ".join(dict.fromkeys((self.one.dtype, self.other.dtype)))
        first = f"the first line that differs:\n{sentence(departures[0])}" if departures else ""
        rows = [first or f"no line differs by more than {dtypes} explains"]
        largest, mean = np.abs(self.apart).max(), np.abs(self.apart).mean()
        told = f"differ by at most {largest:.2g}, by {mean:.2g} on average" if largest else "are equal to the bit"
        rows += [f"log-probabilities of the tokens {told}"]
        every = sorted(self.shares.items(), key=lambda item: -abs(item[1]))
        rows += [f"    {share:6.1%} by Algorithm {n}, line {line}" for (n, line), share in every if abs(share) >= LEAST]
        return "\n".join(rows)


def beside(case: Case, one: Recording, other: Recording, expect: Expect = None, tell: Tell = lambda _: None) -> Beside:
    """Compare what two programs computed of a case; `expect`: what is known to depart in the first.

    Raises:
        ValueError: for an algorithm without next tokens, or programs that cannot be compared to the last line.
    """
    if case.algorithm not in (8, 10):
        raise ValueError(f"--beside: expected a case of Algorithm 8 or 10, which predict tokens, got {case.algorithm}")
    first = diagnose(case, one, expect, tell)
    choices = {**first.declared, **first.walk.choices}
    second = diagnose(case, other, choices, tell)
    case = dataclasses.replace(case, base={**case.base, **choices})
    exact = Reference(case).go()
    paths = [_path(case, exact, report.walk.run.lines) for report in (first, second)]
    added = {visit: paths[1][visit] - paths[0][visit] for visit in exact.lines}
    apart = np.sum([*added.values()], axis=0)
    shares: dict[Line, float] = {}
    for visit, seen in exact.lines.items():
        line = seen.key.algorithm, seen.key.line
        shares[line] = shares.get(line, 0.0) + float(added[visit] @ apart) / max(float(apart @ apart), 1e-300)
    return Beside(first, second, apart, shares)


def _path(case: Case, exact: Reference, shown: Mapping[str, Seen]) -> dict[str, np.ndarray]:
    """Each line's share of the difference of log-probabilities: a program's numbers replace all lines up to it."""
    pins: dict[str, Any] = {}
    added, before = {}, _of_tokens(exact)
    for visit, seen in exact.lines.items():
        match = shown[visit].match if visit in shown else None
        if match is not None and np.shape(match.values) == seen.value.shape[1:]:
            pins[visit] = dataclasses.replace(seen, read=np.asarray(match.values)[None])
        after = _of_tokens(Reference(case, pins=pins).go())
        added[visit], before = after - before, after
    return added


def _of_tokens(run: Reference) -> np.ndarray:
    x = run.case.inputs["x"]
    return run.log_P[0][x[1:], np.arange(len(x) - 1)]


def from_transformers(kind: str) -> Observe:
    """Observe transformers' model of a kind such as "gpt2", of the case's sizes and with its θ, up to the logits.

    `check(from_transformers("llama"), variant="LLAMA")` compares every line.
    """

    def observe(case: Case, dtype: str) -> Recording:
        from training.interchange import save_pretrained  # noqa: PLC0415  # JAX

        from .making import config_of, of_library  # noqa: PLC0415

        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        # PyTorch's grouped product of experts has no float64, and transformers' recurrences are in float32
        is_recurrent = any(type(line).__name__ in RECURRENCES for line in case.record.attentions)
        of_numbers = "float32" if ("experts" in case.base or is_recurrent) and dtype == "float64" else dtype
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / kind
            save_pretrained(path, of_library(case), config_of(case), to=kind)
            given = {"dtype": getattr(torch, of_numbers), "attn_implementation": "eager"}
            model = getattr(transformers, MODELS[case.algorithm]).from_pretrained(path, **given).eval()
        if (b_u := model._buffers.pop("final_logits_bias", None)) is not None:  # a parameter of θ
            model.final_logits_bias = torch.nn.Parameter(b_u)
        names = ("input_ids", "decoder_input_ids") if case.algorithm == 8 else ("input_ids",)
        inputs = [torch.tensor([case.inputs[n]]) for n in ("z", "x") if n in case.inputs]
        tokens = dict(zip(names, inputs, strict=True))
        return record_torch(lambda: model(**tokens, use_cache=False).logits, model)

    return observe


def variant_of(kind: str) -> str:
    """The named variant that has the lines of a kind of transformers' models.

    Raises:
        ValueError: if there is none.
    """
    from training.interchange.architectures import WRITTEN_AS  # noqa: PLC0415

    from .making import named_choices  # noqa: PLC0415

    known = named_choices(2)
    found = {k: VARIANTS.get(k, k.upper()) for task in TASKS.values() for k in WRITTEN_AS[task]}
    found = {k: name for k, name in found.items() if name in known}
    if kind not in found:
        raise ValueError(f"--of transformers:KIND: expected one of {', '.join(found)}, got {kind!r}")
    return found[kind]
